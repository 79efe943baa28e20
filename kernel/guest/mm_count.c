// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measures page faults and fork in nanoseconds of the guest's clock. Under an
 * emulator whose clock counts instructions, these are instructions.
 *
 *   mm_count FILE      (on the file system whose faults are to be measured)
 *
 * Prints a line for each case: its name, and the cost of one page or one fork.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGES 2048
#define ROUNDS 31
#define PAUSE_US 50000
/*
 * Each round waits by this much longer than the one before, so that rounds begin
 * at different times between two ticks.
 */
#define SHIFT_NS 131000

static void die(const char *what)
{
	fprintf(stderr, "mm_count: %s: %s\n", what, strerror(errno));
	exit(1);
}

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static char *map(int fd, int flags)
{
	char *p = mmap(NULL, PAGES * 4096L, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	/* One fault for each page; the guest turns fault-around off. */
	if (madvise(p, PAGES * 4096L, MADV_RANDOM) ||
	    madvise(p, PAGES * 4096L, MADV_NOHUGEPAGE))
		die("madvise");
	return p;
}

static void unmap(char *p)
{
	if (munmap(p, PAGES * 4096L))
		die("munmap");
}

static void spin(long long ns)
{
	long long start = now_ns();

	while (now_ns() - start < ns)
		;
}

static double touch(char *p, int write)
{
	long long start = now_ns();
	volatile char *q = p;
	int i;

	for (i = 0; i < PAGES; i++) {
		if (write)
			q[i * 4096L] = 1;
		else
			(void)q[i * 4096L];
	}
	return (double)(now_ns() - start) / PAGES;
}

static double anon_write(int fd)
{
	char *p = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
	double ns = touch(p, 1);

	(void)fd;
	unmap(p);
	return ns;
}

static double anon_free(int fd)
{
	char *p = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
	long long start;

	(void)fd;
	touch(p, 1);
	start = now_ns();
	unmap(p);
	return (double)(now_ns() - start) / PAGES;
}

static double file_read(int fd)
{
	char *p = map(fd, MAP_SHARED);
	double ns = touch(p, 0);

	unmap(p);
	return ns;
}

static double file_cow(int fd)
{
	char *p = map(fd, MAP_PRIVATE);
	double ns = touch(p, 1);

	unmap(p);
	return ns;
}

/* A fork that copies every page table, and a child that exits at once. */
static double fork_and_wait(int until_exit)
{
	char *p = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
	long long start, returned, exited;
	int status;
	pid_t pid;

	touch(p, 1);
	start = now_ns();
	pid = fork();
	if (!pid)
		_exit(0);
	returned = now_ns();
	if (pid < 0)
		die("fork");
	if (waitpid(pid, &status, 0) < 0 || status)
		die("waitpid");
	exited = now_ns();
	unmap(p);
	return (until_exit ? exited : returned) - start;
}

static double fork_exit(int fd)
{
	(void)fd;
	return fork_and_wait(1);
}

/* Without the child: what the parent does until the call returns. */
static double fork_call(int fd)
{
	(void)fd;
	return fork_and_wait(0);
}

static double fork_cow(int fd)
{
	char *p = map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
	int pipes[2];
	double ns;
	pid_t pid;

	(void)fd;
	touch(p, 1);
	if (pipe(pipes))
		die("pipe");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid) {
		char c;

		close(pipes[1]);
		_exit(read(pipes[0], &c, 1) != 0);
	}
	ns = touch(p, 1);
	close(pipes[0]);
	close(pipes[1]);
	waitpid(pid, NULL, 0);
	unmap(p);
	return ns;
}

static const struct {
	const char *name;
	double (*once)(int fd);
} cases[] = {
	{ "fault-anon", anon_write },
	{ "unmap-anon", anon_free },
	{ "fault-file", file_read },
	{ "fault-file-cow", file_cow },
	{ "fork-2048-pages", fork_exit },
	{ "fork-call-2048-pages", fork_call },
	{ "fault-fork-cow", fork_cow },
};

int main(int argc, char **argv)
{
	const struct sched_param first = { .sched_priority = 1 };
	unsigned int i, round;
	int fd;

	if (argc != 2) {
		fprintf(stderr, "usage: mm_count FILE\n");
		return 2;
	}
	/* A child must not run before its fork has returned. */
	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first))
		die("sched_setscheduler");
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, PAGES * 4096L))
		die(argv[1]);
	for (i = 0; i < PAGES; i++) {
		if (pwrite(fd, "x", 1, i * 4096L) != 1)
			die(argv[1]);
	}
	fsync(fd);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		double best = 0;

		/*
		 * The least of all rounds counts: the first ones fill the allocator's
		 * lists, and in some a tick comes and is counted with them. Without
		 * the wait, every round might meet a tick.
		 */
		for (round = 0; round < ROUNDS; round++) {
			double ns;

			/* RCU frees what the last round left, its child's stack above all. */
			usleep(PAUSE_US);
			spin(round * SHIFT_NS);
			ns = cases[i].once(fd);
			if (!round || ns < best)
				best = ns;
		}
		printf("%s ns %.2f\n", cases[i].name, best);
	}
	return 0;
}
