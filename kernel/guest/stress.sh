# SPDX-License-Identifier: GPL-2.0-only
# What the debug kernels are put through, sourced as the guest's command: the
# workers of mm_stress, and around them everything an administrator can do to
# their pages. STRESS_S seconds in all, 180 unless set: two thirds with huge
# pages being split and memory taken out and put back, one third with hugetlb's
# vmemmap optimised and restored. With STRESS_IDLE=1 nobody uses the memory, and
# the administrator's loops take no rest: races between them are met sooner.
S=${STRESS_S:-180}
nap=0.2
[ "$STRESS_IDLE" = 1 ] && nap=0
echo lzo-rle > /sys/block/zram0/comp_algorithm 2>/dev/null
echo 256M > /sys/block/zram0/disksize
mkswap /dev/zram0 >/dev/null && swapon /dev/zram0 || exit 1
mkdir -p /tmp/huge /cg && mount -t tmpfs -o huge=always,size=256M huge /tmp/huge || exit 1
mount -t cgroup2 cgroup2 /cg && echo +memory > /cg/cgroup.subtree_control && mkdir /cg/stress || exit 1
echo 128M > /cg/stress/memory.high || exit 1
# Pages of a device under a file system.
mkdir -p /dax && mke2fs -b 4096 /dev/pmem0 >/dev/null && mount -t ext4 -o dax /dev/pmem0 /dax || exit 1

# before TIME: whether it is yet to come
before() {
	[ "$(date +%s)" -lt $1 ]
}

# pools END HVO: compaction, and hugetlb's pool, grown and shrunk; with HVO
# set each second growth is of folios whose vmemmap is optimised
pools() {
	n=0
	while before $1; do
		n=$((n + 1))
		echo 1 > /proc/sys/vm/compact_memory
		if [ $2 = 1 ]; then echo $((n / 2 % 2)) > /proc/sys/vm/hugetlb_optimize_vmemmap; fi
		echo $((n % 2 * 24)) > /proc/sys/vm/nr_hugepages
		echo 3 > /proc/sys/vm/drop_caches
		sleep $nap
	done
	echo "pools $n"
}

# Splitting everything there is takes long, so it goes beside the rest.
splits() {
	n=0
	while before $1; do
		echo 1 > /sys/kernel/debug/split_huge_pages && n=$((n + 1))
	done
	echo "splits $n"
}

# Taking a block of memory out migrates every page in it; putting it back gives
# its pages to the allocator as at boot. One that does not get empty is let be.
blocks() {
	n=0
	movable=$(cd /sys/devices/system/memory && grep -l Movable memory*/valid_zones)
	while before $1; do
		for m in $movable; do
			m=/sys/devices/system/memory/${m%/*}
			if timeout 10 sh -c "echo offline > $m/state"; then n=$((n + 1)); fi
			sleep $nap
			if [ "$(cat $m/state)" = offline ]; then
				echo online_movable > $m/state || echo "blocks: $m stays offline"
			fi
			before $1 || break
		done
	done
	echo "blocks $n"
}

# The pages that struct pages take
memmap() {
	awk '/^nr_memmap/ { n += $2 } END { print n }' /proc/vmstat
}

# phase SECONDS HVO FILE...
phase() {
	end=$(($(date +%s) + $1))
	seconds=$1
	pools $end $2 2>/dev/null &
	if [ $2 = 0 ]; then splits $end 2>/dev/null & fi
	blocks $end 2>/dev/null &
	shift 2
	if [ "$STRESS_IDLE" = 1 ]; then
		sleep $seconds
	else
		(echo 0 > /cg/stress/cgroup.procs && exec mm_stress $seconds "$@")
	fi
	status=$?
	wait
	[ $status = 0 ] || exit 1
}

# Nobody is believed who has not seen wrong data.
echo 8 > /proc/sys/vm/nr_hugepages
for kind in read map direct huge pipe offline hugetlb; do
	mm_stress -w $kind 20 /mnt/wrong >/tmp/log 2>&1
	grep -q "^mm_stress: $kind .*: wrong data: " /tmp/log ||
		{ echo "mm_stress: $kind sees no wrong data"; cat /tmp/log; exit 1; }
	echo "noticed by $kind"
done
echo 0 > /proc/sys/vm/nr_hugepages
rm /mnt/wrong
echo always > /sys/kernel/mm/transparent_hugepage/enabled
echo "phase: THP, splits, swap, migration, soft offline"
phase $((S * 2 / 3)) 0 /tmp/a /tmp/huge/b /mnt/c /dax/d
rm -f /tmp/huge/b
echo "phase: hugetlb with and without its vmemmap"
# One page stays optimised for good, so that the static key is not flipped under
# load: QEMU's CPUs may run into the breakpoint of a flip that is over.
echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
echo 0 > /proc/sys/vm/nr_hugepages
had=$(memmap)
echo 1 > /proc/sys/vm/nr_hugepages
echo "vmemmap_pages_freed $((had - $(memmap)))"
fallocate -l 2M /dev/hugepages/kept || exit 1
phase $((S / 3)) 1 /tmp/a /mnt/c /dax/d
swapoff /dev/zram0 || exit 1
# What the lab's coverage.rs wants to see moved, and what is only good to know.
grep -E "^(pswp|thp_split_page |pgmigrate_success |compact_migrate_scanned |drop_pagecache |htlb_buddy_alloc_success )" /proc/vmstat
grep -E "^(thp_migration_success|compact_success) " /proc/vmstat
grep HardwareCorrupted /proc/meminfo
