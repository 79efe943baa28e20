// SPDX-License-Identifier: GPL-2.0-only
/*
 * A page fault in a range that is being unregistered from a userfaultfd must not
 * wait for the page: nobody will provide it.
 *
 * A fault under the VMA's own lock can begin to wait until unregistering locks the
 * VMA for writing. This test makes the time until then long: the range is
 * write-protected, and unregistering walks it first. In each round, a thread
 * touches the range's only missing page in the first half of that time. The test
 * exits with 1 if a thread is not woken.
 *
 *	uffd_unregister [MIB [ROUNDS]]
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, CALIBRATIONS = 3, WAKING_US = 500 * 1000 };

struct toucher {
	char *page;
	long delay_us;
	atomic_int go, ended;
};

static long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000L + now.tv_nsec / 1000;
}

static void *touch(void *arg)
{
	struct toucher *toucher = arg;

	while (!atomic_load(&toucher->go))
		;
	for (long begin = now_us(); now_us() - begin < toucher->delay_us;)
		;
	(void)*(volatile char *)toucher->page;
	atomic_store(&toucher->ended, 1);
	return NULL;
}

/* Registers a range in which every page but the first is present, write-protected. */
static int register_range(struct uffdio_range *range)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register mode = {
		.range = *range,
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_writeprotect protect = {
		.range = *range,
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	if (fd < 0)
		err(2, "userfaultfd");
	if (ioctl(fd, UFFDIO_API, &api))
		err(2, "UFFDIO_API");
	if (ioctl(fd, UFFDIO_REGISTER, &mode))
		err(2, "UFFDIO_REGISTER for missing pages and write protection");
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &protect))
		err(2, "UFFDIO_WRITEPROTECT");
	return fd;
}

/* One round. Returns how long unregistering took, or -1 if the toucher hung. */
static long run(size_t bytes, long delay_us, int touches)
{
	char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_range range = { .start = (unsigned long)area, .len = bytes };
	struct toucher toucher = { .page = area, .delay_us = delay_us };
	pthread_t thread;
	long begin, took, error;
	int fd;

	if (area == MAP_FAILED)
		err(2, "mmap of %zu bytes", bytes);
	if (madvise(area, bytes, MADV_NOHUGEPAGE) && errno != EINVAL)
		err(2, "MADV_NOHUGEPAGE");
	for (size_t at = PAGE; at < bytes; at += PAGE)
		area[at] = 1;
	fd = register_range(&range);

	if (touches) {
		error = pthread_create(&thread, NULL, touch, &toucher);
		if (error)
			errx(2, "pthread_create: %s", strerror(error));
		usleep(1000);
	}
	atomic_store(&toucher.go, 1);
	begin = now_us();
	if (ioctl(fd, UFFDIO_UNREGISTER, &range))
		err(2, "UFFDIO_UNREGISTER");
	took = now_us() - begin;

	if (touches) {
		for (begin = now_us(); now_us() - begin < WAKING_US;) {
			if (atomic_load(&toucher.ended))
				break;
			usleep(1000);
		}
		if (!atomic_load(&toucher.ended))
			took = -1;
	}
	/* Closing the userfaultfd wakes the thread if it still waits. */
	close(fd);
	if (touches)
		pthread_join(thread, NULL);
	munmap(area, bytes);
	return took;
}

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? strtoul(argv[1], NULL, 0) : 256;
	int rounds = argc > 2 ? atoi(argv[2]) : 10;
	long shortest = 0;

	if (!mib || rounds <= 0)
		errx(2, "usage: uffd_unregister [MIB [ROUNDS]]");
	for (int i = 0; i < CALIBRATIONS; i++) {
		long took = run(mib << 20, 0, 0);

		if (!i || took < shortest)
			shortest = took;
	}
	printf("unregistering takes %ld us\n", shortest);
	for (int i = 0; i < rounds; i++) {
		long delay_us = shortest * (i + 1) / (2 * (rounds + 1));

		if (run(mib << 20, delay_us, 1) < 0) {
			printf("a fault %ld us after unregistering began hangs\n", delay_us);
			return 1;
		}
	}
	printf("none of %d faults hangs\n", rounds);
	return 0;
}
