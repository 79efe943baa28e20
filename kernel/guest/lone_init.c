// SPDX-License-Identifier: GPL-2.0-only
/*
 * The /init of a guest that has no shell, on machines for which there is no
 * busybox: mounts /proc, /dev, and the disk on /mnt, runs /program with /mnt as
 * its argument, prints its exit status, and restarts the machine.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
	const char *what, *where, *type;
} mounts[] = {
	{ "proc", "/proc", "proc" },
	{ "dev", "/dev", "devtmpfs" },
	{ "/dev/vda", "/mnt", "ext4" },
};

static int run(void)
{
	int status;

	for (unsigned int i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		mkdir(mounts[i].where, 0755);
		if (mount(mounts[i].what, mounts[i].where, mounts[i].type, 0, NULL)) {
			printf("init: %s: %s\n", mounts[i].where, strerror(errno));
			return -1;
		}
	}
	switch (fork()) {
	case -1:
		return -1;
	case 0:
		execl("/program", "/program", "/mnt", NULL);
		_exit(127);
	}
	return wait(&status) < 0 ? -1 : status;
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("init: exit status %d\n", run());
	sync();
	return reboot(RB_AUTOBOOT);
}
