#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# The guest's /init: mounts what programs expect, runs /lab/cmd with its output
# on the second serial port, and leaves. The kernel has the first port alone,
# so that neither cuts the other's lines.
/bin/busybox mkdir -p /bin /sbin /usr/bin /proc /sys /dev /tmp /mnt
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/lab
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/shm /dev/hugepages
mount -t debugfs debug /sys/kernel/debug
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t hugetlbfs huge /dev/hugepages
if [ -b /dev/vda ]; then mount -t ext4 /dev/vda /mnt; fi
ulimit -l unlimited
stty -F /dev/ttyS1 -onlcr 2>/dev/null
(cd /tmp && exec sh /lab/cmd) </dev/null >/dev/ttyS1 2>&1
echo "lab: exit $?" >/dev/ttyS1
sync
reboot -f
