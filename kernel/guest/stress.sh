# SPDX-License-Identifier: GPL-2.0-only
# What the debug kernels are put through, sourced as the guest's command: the
# workers of mm_stress, and around them everything an administrator can do to
# their pages. STRESS_S seconds, 120 unless the command line says otherwise.
S=${STRESS_S:-120}
echo lzo-rle > /sys/block/zram0/comp_algorithm 2>/dev/null
echo 256M > /sys/block/zram0/disksize
mkswap /dev/zram0 >/dev/null && swapon /dev/zram0
mkdir -p /tmp/huge /cg && mount -t tmpfs -o huge=always,size=256M huge /tmp/huge
mount -t cgroup2 cgroup2 /cg && echo +memory > /cg/cgroup.subtree_control && mkdir /cg/stress
echo 96M > /cg/stress/memory.high
echo 1 > /sys/kernel/mm/ksm/run
around() {
	end=$(($(date +%s) + S))
	n=0
	while [ "$(date +%s)" -lt $end ]; do
		n=$((n + 1))
		echo 1 > /proc/sys/vm/compact_memory
		echo 1 > /sys/kernel/debug/split_huge_pages
		echo $((n % 2 * 24)) > /proc/sys/vm/nr_hugepages
		echo $((n % 3)) > /proc/sys/vm/hugetlb_optimize_vmemmap 2>/dev/null
		echo 3 > /proc/sys/vm/drop_caches
		sleep 0.2
	done
	echo "around $n"
}
around &
(echo 0 > /cg/stress/cgroup.procs; exec mm_stress "$S" /tmp/a /tmp/huge/b /mnt/c)
status=$?
wait
swapoff /dev/zram0
grep -E "^(pswpout|thp_split_page|pgmigrate_success|compact_success|unevictable_pgs_scanned) " /proc/vmstat
(exit $status)
