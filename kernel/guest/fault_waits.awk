# SPDX-License-Identifier: GPL-2.0-only
# Sums a trace of the fault_wait events: for each kind of wait, how often it
# happened (waits-KIND), how often it took 10 ms or more (long-waits-KIND), and
# the longest in microseconds (longest-wait-KIND). A kind is what a fault waited
# for and the lock that it held meanwhile, or "write" if somebody waited to change
# a VMA. Waits that began before the trace or end after it are left out.
#
#	awk -f fault_waits.awk /sys/kernel/debug/tracing/trace

# Fields: task-pid, [cpu], flags, time with a colon, event with a colon, rest.
$5 ~ /^(fault_wait|vma_write_wait)_begin:$/ {
	began[$1] = $4 + 0
	next
}

$5 ~ /^(fault_wait|vma_write_wait)_end:$/ {
	if (!($1 in began))
		next
	kind = "write"
	if ($5 ~ /^fault/) {
		kind = $7 "-" $8
		gsub(/[a-z]+=/, "", kind)
	}
	us = int(($4 - began[$1]) * 1000000 + 0.5)
	delete began[$1]
	waits[kind]++
	long[kind] += us >= 10000
	if (us > most[kind])
		most[kind] = us
}

END {
	for (kind in waits) {
		print "waits-" kind, waits[kind]
		print "long-waits-" kind, long[kind]
		print "longest-wait-" kind, most[kind] + 0
	}
}
