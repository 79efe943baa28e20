# SPDX-License-Identifier: GPL-2.0-only
# The workloads of page faults that wait, each with the kernel's counters and its
# traced waits. It prints lines of WORKLOAD KEY VALUE.
#
#	faults.sh SECONDS
#
# /mnt is a file system on a slow disk, and /dev/vdb a slow disk for swap. Two
# CPUs are enough: what is looked at is waiting, and not computing.

seconds=$1
trace=/sys/kernel/debug/tracing
group=/cgroup/faults

fail() {
	echo "faults.sh: $*"
	exit 1
}

counters() {
	grep -E '^(retry_|vma_lock_|pgmajfault|workingset_refault_|pswp)' /proc/vmstat
}

# NAME MEMORY SWAP COMMAND...: runs the command in the group with these limits.
workload() {
	name=$1
	echo "$2" >$group/memory.max || fail "memory.max"
	echo "$3" >$group/memory.swap.max || fail "memory.swap.max"
	shift 3
	sync
	echo 3 >/proc/sys/vm/drop_caches
	counters >/tmp/before
	echo >$trace/trace
	echo 1 >$trace/events/fault_wait/enable
	sh -c "echo \$\$ >$group/cgroup.procs && exec \"\$@\"" sh "$@" >/tmp/printed
	status=$?
	echo 0 >$trace/events/fault_wait/enable
	counters >/tmp/after
	[ $status = 0 ] || fail "$* failed with status $status"
	if grep -hE "^overrun: [1-9]" $trace/per_cpu/cpu*/stats; then
		fail "the trace of $name is not whole"
	fi
	{
		cat /tmp/printed
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
mkswap /dev/vdb >/dev/null && swapon /dev/vdb || fail "no swap"
echo 16384 >$trace/buffer_size_kb || fail "no trace buffer"

for writer in none mmap fork; do
	workload startup-$writer max 0 fault_startup /mnt 4 4 4 1 $writer
done
workload thrash-data 12M 0 fault_thrash /mnt 24 4 "$seconds" data
workload thrash-holes 12M 0 fault_thrash /mnt 24 4 "$seconds" holes
workload swap max max fault_swap 32 2 3 "$seconds"
