# SPDX-License-Identifier: GPL-2.0-only
# The workloads of page faults that wait, each with the kernel's counters and its
# traced waits. Each does a given amount of work. It prints lines of WORKLOAD KEY
# VALUE.
#
#	faults.sh OPS MEMORY WORKLOAD...
#
# It moves /mnt to a slow disk, and swaps to another one. Either can do OPS
# operations a second, one by one. MEMORY is what thrash may use. In place of the time
# that a workload took, it prints how many operations a disk can do in that time
# (disk-turns).

ops=$1
memory=$2
shift 2
trace=/sys/kernel/debug/tracing
group=/cgroup/faults

fail() {
	echo "faults.sh: $*"
	exit 1
}

# The reads that the disk of /mnt, or of swap, has completed are a counter, too.
counters() {
	grep -E '^(retry_|vma_lock_|pgmajfault|workingset_refault_|pswp)' /proc/vmstat
	awk '{ print "disk-reads", $1 }' /sys/block/nullb$disk/stat
}

# NAME MEMORY SWAP COMMAND...: runs the command in the group with these limits.
workload() {
	name=$1
	disk=0
	[ "$3" = 0 ] || disk=1
	echo "$2" >$group/memory.max || fail "memory.max"
	echo "$3" >$group/memory.swap.max || fail "memory.swap.max"
	shift 3
	sync
	echo 3 >/proc/sys/vm/drop_caches
	counters >/tmp/before
	echo >$trace/trace
	for event in $events; do echo 1 >$trace/events/$event/enable; done
	sh -c "echo \$\$ >$group/cgroup.procs && exec \"\$@\"" sh "$@" >/tmp/printed
	status=$?
	for event in $events; do echo 0 >$trace/events/$event/enable; done
	counters >/tmp/after
	[ $status = 0 ] || fail "$* failed with status $status: $(cat /tmp/printed)"
	if grep -hE "^(overrun|commit overrun|dropped events): [1-9]" $trace/per_cpu/cpu*/stats; then
		fail "the trace of $name is not whole"
	fi
	{
		awk -v ops="$ops" '$1 == "microseconds" { $0 = "disk-turns " int($2 * ops / 1000000) } 1' /tmp/printed
		paste /tmp/before /tmp/after | awk '$1 == $3 { print $1, $4 - $2 }'
		awk -f /lab/fault_waits.awk $trace/trace
	} | sed "s/^/$name /"
	rm -f /mnt/startup-* /mnt/thrash-*
}

grep -q ^retry_io_miss /proc/vmstat || fail "this kernel has no counters of retries"
mkdir -p /cgroup
mount -t cgroup2 none /cgroup || fail "no cgroup2"
echo +memory >/cgroup/cgroup.subtree_control || fail "no memory controller"
mkdir $group
umount /mnt && dd if=/dev/vda of=/dev/nullb0 bs=1M 2>/dev/null && mount -t ext4 /dev/nullb0 /mnt ||
	fail "no slow disk"
# The files, and the memory that there is for them, are small, so readahead is, too.
echo 32 >/sys/block/nullb0/queue/read_ahead_kb || fail "no readahead"
mkswap /dev/nullb1 >/dev/null && swapon /dev/nullb1 || fail "no swap"
echo 16384 >$trace/buffer_size_kb || fail "no trace buffer"
events="fault_wait mmap_lock/mmap_lock_start_locking mmap_lock/mmap_lock_acquire_returned"
for event in $events; do
	[ -e $trace/events/$event ] || fail "no event $event"
	# Faults take it for reading, which is counted without a trace.
	case $event in
	mmap_lock/*) echo 'write == 1' >$trace/events/$event/filter || fail "no filter" ;;
	esac
done

for name; do
	case $name in
	startup-*) workload $name max 0 fault_startup /mnt 4 4 4 1 ${name#startup-} ;;
	# Few pages may be dirty, so stores are often throttled, also those of second attempts.
	giant-store)
		echo 8192 >/proc/sys/vm/dirty_background_bytes || fail "no limit"
		echo 16384 >/proc/sys/vm/dirty_bytes || fail "no limit"
		workload $name max 0 fault_startup /mnt 4 1 4 1 store
		echo 10 >/proc/sys/vm/dirty_background_ratio
		echo 20 >/proc/sys/vm/dirty_ratio
		;;
	# All that is read is in one VMA.
	giant-*) workload $name max 0 fault_startup /mnt 4 1 16 1 ${name#giant-} ;;
	thrash-*) workload $name $memory 0 fault_thrash /mnt 96 1 2 ${name#thrash-} ;;
	swap) workload $name max max fault_swap 32 2 3 1000 ;;
	selftest)
		# Cases that fail are for the caller to judge.
		fault_retry /mnt >/tmp/printed
		grep -q '^# Totals' /tmp/printed || fail "$(cat /tmp/printed)"
		awk -f /lab/fault_cases.awk /tmp/printed | sed "s/^/$name /"
		;;
	*) fail "no workload $name" ;;
	esac
done
