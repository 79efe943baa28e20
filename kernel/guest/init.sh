#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only
# The guest's /init: mounts the file systems that programs expect, runs /lab/cmd
# with its output on the second serial port, and restarts the machine, which ends
# QEMU. Only the kernel's log goes to the first port, so that neither output
# breaks the other's lines.
/bin/busybox mkdir -p /bin /sbin /usr/bin /proc /sys /dev /tmp /mnt
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/lab

leave() {
	echo "lab: exit $1" >/dev/ttyS1
	sync
	reboot -f
}

# If a mount failed, programs would use the folder in the initramfs instead.
mounted() {
	mount -t "$@" || { echo "init: cannot mount $*" >/dev/ttyS1; leave 1; }
}

mounted devtmpfs dev /dev
mounted proc proc /proc
mounted sysfs sysfs /sys
mkdir -p /dev/shm /dev/hugepages /ram
mounted debugfs debug /sys/kernel/debug
mounted tmpfs tmpfs /tmp
mounted tmpfs tmpfs /dev/shm
mounted ramfs ramfs /ram
mounted hugetlbfs huge /dev/hugepages
# A kernel without ext4 has no disks either.
if grep -qw ext4 /proc/filesystems; then mounted ext4 /dev/vda /mnt; fi
ulimit -l unlimited
stty -F /dev/ttyS1 -onlcr 2>/dev/null
(cd /tmp && exec sh /lab/cmd) </dev/null >/dev/ttyS1 2>&1
leave $?
