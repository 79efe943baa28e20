# SPDX-License-Identifier: GPL-2.0-only
# Reads what the selftest fault_retry prints. For each case: whether it passed (passed-N),
# and whether it was skipped (skipped-N), which kselftest prints as "ok N # SKIP reason".
#
#	awk -f fault_cases.awk OUTPUT

$1 == "ok" {
	skipped = $3 " " $4 == "# SKIP"
	print "passed-" $2, skipped ? 0 : 1
	if (skipped)
		print "skipped-" $2, 1
}

$1 == "not" && $2 == "ok" {
	print "passed-" $3, 0
}
