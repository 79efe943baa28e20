# SPDX-License-Identifier: GPL-2.0-only
# Sums a trace of the fault_wait events, and of those of mmap_lock for writers: for
# each kind of wait, how often it happened (waits-KIND), how often it took 10 ms or
# more (long-waits-KIND), the longest, and all together, in microseconds
# (longest-wait-KIND, waited-KIND). A kind is what a fault waited for and the lock
# that it held meanwhile, with "-again" if it was a second attempt, "write-vma" if
# somebody waited to change a VMA, and "write-mmap" if somebody waited to change the
# address space. mmap_lock is traced each time that it is taken, so only 1 ms and
# more of it is a wait. Waits that began before the trace or end after it are left
# out.
#
#	awk -f fault_waits.awk /sys/kernel/debug/tracing/trace

# Fields: task-pid, [cpu], flags, time with a colon, event with a colon, rest.
function ended(kind, us) {
	waits[kind]++
	long[kind] += us >= 10000
	all[kind] += us
	if (us > most[kind])
		most[kind] = us
}

function since(began) {
	return int(($4 - began) * 1000000 + 0.5)
}

$5 ~ /^(fault_wait|vma_write_wait)_begin:$/ {
	began[$1] = $4 + 0
	next
}

$5 ~ /^(fault_wait|vma_write_wait)_end:$/ {
	if (!($1 in began))
		next
	kind = "write-vma"
	if ($5 ~ /^fault/) {
		kind = $7 "-" $8
		gsub(/[a-z]+=/, "", kind)
		if ($9 == "tried=1")
			kind = kind "-again"
	}
	ended(kind, since(began[$1]))
	delete began[$1]
}

# A fork holds the lock of the parent when it takes the one of the child.
$5 == "mmap_lock_start_locking:" {
	queued[$1] = $4 + 0
	next
}

$5 == "mmap_lock_acquire_returned:" {
	if (!($1 in queued))
		next
	us = since(queued[$1])
	delete queued[$1]
	if (us >= 1000)
		ended("write-mmap", us)
}

END {
	for (kind in waits) {
		print "waits-" kind, waits[kind]
		print "long-waits-" kind, long[kind]
		print "longest-wait-" kind, most[kind] + 0
		print "waited-" kind, all[kind]
	}
}
