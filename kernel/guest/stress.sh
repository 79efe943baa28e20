# SPDX-License-Identifier: GPL-2.0-only
# The stress, run as the guest's command: the workers of mm_stress, fsx, and beside
# them loops that do to their pages all that an administrator can do. It takes
# STRESS_S seconds, 180 by default. For two thirds of the time, huge pages are
# split, and memory goes offline and online again. For one third, hugetlb's
# vmemmap is optimised and restored. With STRESS_IDLE=1 there are no workers,
# and the loops do not pause, so that races between them come up sooner.
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

# before TIME: whether it is still before TIME, in seconds since the epoch
before() {
	[ "$(date +%s)" -lt $1 ]
}

# pools END HVO: until END, compacts memory, and grows and shrinks hugetlb's
# pool. If HVO is 1, every second growth adds folios whose vmemmap is optimised.
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

# splits END: splits all huge pages, again and again. One pass takes long, so
# this is a loop of its own.
splits() {
	n=0
	while before $1; do
		echo 1 > /sys/kernel/debug/split_huge_pages && n=$((n + 1))
	done
	echo "splits $n"
}

# blocks END: takes blocks of memory offline, which migrates every page in them,
# and online again, which gives their pages to the allocator as at boot. A block
# that cannot be emptied within 10 seconds is left alone.
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

# How many pages the struct pages take
memmap() {
	awk '/^nr_memmap/ { n += $2 } END { print n }' /proc/vmstat
}

# exercise END FILE: does random operations to FILE, and checks what it reads
exercise() {
	n=0
	while before $1; do
		n=$((n + 1))
		if ! fsx -q -f /lab/fsx.toml -S $n -N $OPS $2 >$2.log 2>&1; then
			if grep -qE "$WRONG" $2.log; then
				echo "fsx $2, seed $n: wrong data: $(grep -E "$WRONG" $2.log)"
			else
				echo "fsx $2, seed $n, failed: $(tail -n 1 $2.log)"
			fi
			return
		fi
	done
	echo "fsx $2 $((n * OPS))"
}
OPS=200
WRONG="miscompare|Size error"

# phase SECONDS HVO FILE...: runs the loops, and the workers on these files
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
		for file in /mnt/x /tmp/huge/x; do
			(echo 0 > /cg/stress/cgroup.procs; exercise $end $file) &
		done
		(echo 0 > /cg/stress/cgroup.procs && exec mm_stress $seconds "$@")
	fi
	status=$?
	wait
	[ $status = 0 ] || exit 1
}

# Only the patched kernel has short reads without a reference.
SHORT=/proc/sys/vm/short_reads
[ ! -e $SHORT ] || echo 1 > $SHORT
# Each kind of worker must notice wrong data before its result counts.
echo 8 > /proc/sys/vm/nr_hugepages
for kind in read map direct huge pipe offline hugetlb; do
	mm_stress -w $kind 20 /mnt/wrong >/tmp/log 2>&1
	grep -q "^mm_stress: $kind .*: wrong data: " /tmp/log ||
		{ echo "mm_stress: $kind does not notice wrong data"; cat /tmp/log; exit 1; }
	echo "noticed by $kind"
done
# Somebody else writes to fsx's file.
timeout 100 fsx -q -f /lab/fsx.toml /mnt/x >/tmp/log 2>&1 &
timeout 50 sh -c "until [ -s /mnt/x ]; do sleep 0.1; done"
dd if=/dev/urandom of=/mnt/x bs=64k count=4 conv=notrunc 2>/dev/null
wait $!
grep -qE "$WRONG" /tmp/log || { echo "fsx does not notice wrong data"; cat /tmp/log; exit 1; }
echo "noticed by fsx"
echo 0 > /proc/sys/vm/nr_hugepages
rm /mnt/wrong /mnt/x
echo always > /sys/kernel/mm/transparent_hugepage/enabled
echo "phase: THP, splits, swap, migration, soft offline"
phase $((S * 2 / 3)) 0 /tmp/a /tmp/huge/b /mnt/c /dax/d
rm -f /tmp/huge/b
echo "phase: hugetlb with and without its vmemmap"
# One page stays optimised, so that the static key is not flipped under load:
# QEMU's CPUs may execute the breakpoint of a flip that has ended.
echo 1 > /proc/sys/vm/hugetlb_optimize_vmemmap
echo 0 > /proc/sys/vm/nr_hugepages
had=$(memmap)
echo 1 > /proc/sys/vm/nr_hugepages
echo "vmemmap_pages_freed $((had - $(memmap)))"
fallocate -l 2M /dev/hugepages/kept || exit 1
phase $((S / 3)) 1 /tmp/a /mnt/c /dax/d
swapoff /dev/zram0 || exit 1
if [ -e $SHORT ]; then
	grep ^short_read_ /proc/vmstat
	grep -qE "^short_read_done [1-9]" /proc/vmstat || [ "$STRESS_IDLE" = 1 ] || exit 1
fi
# The counters that the lab's coverage.rs checks, and some for information.
grep -E "^(pswp|thp_split_page |pgmigrate_success |compact_migrate_scanned |drop_pagecache |htlb_buddy_alloc_success )" /proc/vmstat
grep -E "^(thp_migration_success|compact_success) " /proc/vmstat
grep HardwareCorrupted /proc/meminfo
