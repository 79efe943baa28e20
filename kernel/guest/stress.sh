# SPDX-License-Identifier: GPL-2.0-only
# What the debug kernels are put through, sourced as the guest's command: the
# workers of mm_stress, and around them everything an administrator can do to
# their pages. STRESS_S seconds in all, 180 unless set: two thirds with huge
# pages being split, one third with hugetlb's vmemmap optimised.
S=${STRESS_S:-180}
echo lzo-rle > /sys/block/zram0/comp_algorithm 2>/dev/null
echo 256M > /sys/block/zram0/disksize
mkswap /dev/zram0 >/dev/null && swapon /dev/zram0 || exit 1
mkdir -p /tmp/huge /cg && mount -t tmpfs -o huge=always,size=256M huge /tmp/huge || exit 1
mount -t cgroup2 cgroup2 /cg && echo +memory > /cg/cgroup.subtree_control && mkdir /cg/stress || exit 1
echo 128M > /cg/stress/memory.high
echo 1 > /sys/kernel/mm/ksm/run

# around SECONDS SPLIT HVO: until the time is over
around() {
	end=$(($(date +%s) + $1))
	n=0
	while [ "$(date +%s)" -lt $end ]; do
		n=$((n + 1))
		echo 1 > /proc/sys/vm/compact_memory
		if [ $3 = 0 ]; then echo $((n % 2 * 24)) > /proc/sys/vm/nr_hugepages; fi
		echo 3 > /proc/sys/vm/drop_caches
		sleep 0.2
	done
	echo "around $n"
}

# Splitting everything there is takes long, so it goes beside the rest.
splits() {
	end=$(($(date +%s) + $1))
	while [ $2 = 1 ] && [ "$(date +%s)" -lt $end ]; do
		echo 1 > /sys/kernel/debug/split_huge_pages
	done
}

# phase SECONDS SPLIT HVO FILE...
phase() {
	around $1 $2 $3 2>/dev/null &
	splits $1 $2 2>/dev/null &
	seconds=$1
	shift 3
	(echo 0 > /cg/stress/cgroup.procs; exec mm_stress $seconds "$@")
	status=$?
	wait
	[ $status = 0 ] || exit 1
}

echo always > /sys/kernel/mm/transparent_hugepage/enabled
echo "phase: THP, splits, swap, soft offline"
phase $((S * 2 / 3)) 1 0 /tmp/a /tmp/huge/b /mnt/c
rm -f /tmp/huge/b
echo "phase: hugetlb without its vmemmap"
# The pool is not shrunk: 6.12.117 itself restores a vmemmap wrongly, with copies
# of the head where the tails belong, and whoever gets that memory next suffers.
echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
echo 28 > /proc/sys/vm/nr_hugepages
phase $((S / 3)) 0 1 /tmp/a /mnt/c
swapoff /dev/zram0
grep -E "^(pswpin|pswpout|thp_split_page|pgmigrate_success|compact_success|htlb_buddy_alloc_success) " /proc/vmstat
grep HardwareCorrupted /proc/meminfo
true
