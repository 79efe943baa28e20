# SPDX-License-Identifier: GPL-2.0-only
# The guest's command: ROUNDS times (20), takes all blocks of movable memory
# offline, and then online again. With the boot parameter rcutree.sysrq_rcu=1 a
# preemptible kernel tells how many grace periods of tasks-RCU have ended, so it
# also prints how many that took. Meanwhile processes begin and end by the
# dozen, because RCU frees their stacks in softirqs, where DEBUG_VM reads the
# span of a zone. Blocks that cannot go offline are left alone.

# gps: how many grace periods of tasks-RCU have ended; nothing if there is none
gps() {
	echo y > /proc/sysrq-trigger
	dmesg | awk '/rcu_tasks: RTGS/ { for (i = 1; i <= NF; i++) if ($i ~ /^g:/) g = substr($i, 3) }
		END { if (g != "") print int(g / 4) }'
}

cd /sys/devices/system/memory || exit 1
blocks=$(grep -l Movable memory*/valid_zones)
off=0
on=0
while :; do
	for i in $(seq 30); do sleep 0.2 & done
	wait
done &
load=$!
before=$(gps)
for round in $(seq ${ROUNDS:-20}); do
	for b in $blocks; do
		b=${b%/*}
		(echo offline > $b/state) 2>/dev/null && off=$((off + 1))
	done
	for b in $blocks; do
		b=${b%/*}
		[ "$(cat $b/state)" = offline ] || continue
		echo online_movable > $b/state || exit 1
		on=$((on + 1))
	done
done
after=$(gps)
kill $load
periods="not told"
[ -z "$after" ] || periods=$((after - before))
echo "blocks offline $off, online $on; grace periods of tasks-RCU: $periods"
[ $off -gt 0 ] && [ $off = $on ] && [ "$periods" != 0 ]
