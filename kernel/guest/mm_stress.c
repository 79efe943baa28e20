// SPDX-License-Identifier: GPL-2.0-only
/*
 * Workers that take and drop page references in every way user space can bring
 * about, against each other, for a given time:
 *
 *   mm_stress [-w] SECONDS FILE...
 *
 * For each FILE two readers, a writer that truncates and punches holes, and a
 * mapper that pages its range out. Besides, anonymous workers: huge pages that
 * are split, forked over and swapped; direct I/O, which pins; vmsplice and tee,
 * which take references through a pipe; soft offlining; hugetlb.
 *
 * Prints how often each has done its work. Any worker that sees wrong data
 * makes the whole fail; the kernel's complaints are in its own log. With -w, wrong
 * data is written: a run that does not fail then sees nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

#define PAGE 4096L
#define FILE_PAGES 1024L
#define HUGE (2L << 20)
#define MAX_WORKERS 64
#define OFFLINE_MAX 64

struct worker {
	const char *name;
	const char *path;
	unsigned int path_hash;
	void (*once)(struct worker *w);
	int fd;
	unsigned int seed;
	char *mem;
	atomic_ulong *done;
};

static atomic_ulong *counters;
static atomic_int *wrong;
static int lie;
static struct worker workers[MAX_WORKERS];
static int nr_workers;

static void fail(struct worker *w, const char *what)
{
	fprintf(stderr, "mm_stress: %s %s: %s (errno %d)\n", w->name,
		w->path ? w->path : "", what, errno);
	atomic_store(wrong, 1);
	_exit(1);
}

static long pick(struct worker *w, long n)
{
	w->seed = w->seed * 1103515245u + 12345u;
	return (w->seed >> 8) % n;
}

/*
 * What every word of a page of a file holds: whose it is. Multiplied by an odd
 * number, two page numbers differ in more than a byte.
 */
static unsigned long owner(struct worker *w, long index)
{
	return (unsigned long)w->path_hash << 32 | (unsigned int)(index + 1) * 0x9e3779b1u;
}

/*
 * Every byte is the owner's, or of a hole, 0. Bytes and not words: who reads while
 * another writes may find a word that is half written.
 */
static void check(struct worker *w, const unsigned long *page, long index)
{
	unsigned long own = owner(w, index);
	const unsigned char *bytes = (const unsigned char *)page;
	char what[120];
	long i;

	for (i = 0; i < PAGE; i++) {
		if (!bytes[i] || bytes[i] == (unsigned char)(own >> i % 8 * 8))
			continue;
		snprintf(what, sizeof(what),
			 "page %ld has another page's data: %#lx at byte %ld, not %#lx",
			 index, page[i / 8], i / 8 * 8, own);
		fail(w, what);
	}
}

static void fill(struct worker *w, unsigned long *page, long index)
{
	int i;

	for (i = 0; i < PAGE / 8; i++)
		page[i] = owner(w, index);
}

static void file_read(struct worker *w)
{
	unsigned long page[PAGE / 8];
	long index = pick(w, FILE_PAGES);
	ssize_t n = pread(w->fd, page, PAGE, index * PAGE);

	if (n < 0)
		fail(w, "pread");
	if (n == PAGE)
		check(w, page, index);
}

static void file_change(struct worker *w)
{
	unsigned long page[PAGE / 8];
	long index = pick(w, FILE_PAGES);
	int i;

	switch (pick(w, 8)) {
	case 0:
		if (ftruncate(w->fd, index * PAGE))
			fail(w, "ftruncate");
		break;
	case 1:
		if (fallocate(w->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      index * PAGE, 16 * PAGE))
			fail(w, "punch");
		break;
	case 2:
		/* Not on every file system, and not of pages in use. */
		posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
		break;
	default:
		for (i = 0; i < 32 && index + i < FILE_PAGES; i++) {
			fill(w, page, index + i + lie);
			if (pwrite(w->fd, page, PAGE, (index + i) * PAGE) != PAGE &&
			    errno != ENOSPC && errno != ENOMEM)
				fail(w, "pwrite");
		}
	}
}

static void file_map(struct worker *w)
{
	long index = pick(w, FILE_PAGES - 64), i;
	volatile unsigned long *p;
	unsigned char in[64];

	p = mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, w->fd, index * PAGE);
	if (p == MAP_FAILED)
		fail(w, "mmap");
	/* Touching beyond the end of a file that shrinks would be SIGBUS. */
	if (!mincore((void *)p, 64 * PAGE, in))
		madvise((void *)p, 64 * PAGE, MADV_WILLNEED);
	for (i = 0; i < 64; i++)
		madvise((char *)p + i * PAGE, PAGE, 22 /* MADV_POPULATE_READ */);
	madvise((void *)p, 64 * PAGE, MADV_PAGEOUT);
	munmap((void *)p, 64 * PAGE);
}

static void anon_huge(struct worker *w)
{
	char *p, *at;
	int status, i;
	pid_t pid;

	p = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		fail(w, "mmap");
	at = (char *)(((unsigned long)p + HUGE - 1) & ~(HUGE - 1));
	madvise(at, HUGE, MADV_HUGEPAGE);
	for (i = 0; i < 512; i++)
		*(long *)(at + i * PAGE) = i + 1;
	pid = fork();
	if (!pid) {
		for (i = 0; i < 512; i += 7)
			*(long *)(at + i * PAGE) = -1;
		madvise(at, HUGE / 2, MADV_DONTNEED);
		_exit(0);
	}
	madvise(at + HUGE / 4, HUGE / 4, MADV_PAGEOUT);
	/* Unmapping a part makes the rest one to split. */
	munmap(at, 3 * PAGE);
	for (i = 3; i < 512; i++) {
		if (*(long *)(at + i * PAGE) != i + 1)
			fail(w, "anonymous memory changed");
	}
	if (pid > 0 && waitpid(pid, &status, 0) != pid)
		fail(w, "waitpid");
	munmap(at + 3 * PAGE, HUGE - 3 * PAGE);
	munmap(p, 2 * HUGE);
}

static void direct_io(struct worker *w)
{
	long index = pick(w, FILE_PAGES);
	int fd, i;
	pid_t pid;

	if (!w->mem) {
		w->mem = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (w->mem == MAP_FAILED)
			fail(w, "mmap");
	}
	fd = open(w->path, O_RDWR | O_DIRECT);
	if (fd < 0)
		fail(w, "O_DIRECT");
	/* The pins of the read against the copy-on-write of the fork. */
	pid = fork();
	if (!pid)
		_exit(0);
	if (pread(fd, w->mem, 64 * PAGE, index * PAGE) < 0 && errno != EINVAL)
		fail(w, "direct pread");
	for (i = 0; i < 64; i++)
		w->mem[i * PAGE]++;
	if (pid > 0)
		waitpid(pid, NULL, 0);
	close(fd);
}

static void pipes(struct worker *w)
{
	struct iovec iov;
	int a[2], b[2];
	char buf[PAGE];

	if (!w->mem)
		w->mem = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pipe(a) || pipe(b))
		fail(w, "pipe");
	memset(w->mem, 1, 8 * PAGE);
	iov.iov_base = w->mem;
	iov.iov_len = 8 * PAGE;
	if (vmsplice(a[1], &iov, 1, SPLICE_F_NONBLOCK) > 0 &&
	    tee(a[0], b[1], 4 * PAGE, SPLICE_F_NONBLOCK) > 0 &&
	    read(b[0], buf, sizeof(buf)) < 0)
		fail(w, "read");
	madvise(w->mem, 8 * PAGE, MADV_DONTNEED);
	close(a[0]);
	close(a[1]);
	close(b[0]);
	close(b[1]);
}

/* Takes pages out of use for good, so only some. */
static void soft_offline(struct worker *w)
{
	static int taken;
	char *p;

	if (taken >= OFFLINE_MAX) {
		usleep(100000);
		return;
	}
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail(w, "mmap");
	*p = 7;
	if (!madvise(p, PAGE, MADV_SOFT_OFFLINE))
		taken++;
	if (*p != 7)
		fail(w, "soft offline lost data");
	munmap(p, PAGE);
	usleep(20000);
}

static void hugetlb(struct worker *w)
{
	long i;
	char *p = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	pid_t pid;

	(void)w;
	if (p == MAP_FAILED) {
		usleep(1000);
		return;
	}
	/* The pool may be emptied under us: SIGBUS ends only the child. */
	pid = fork();
	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		for (i = 0; i < HUGE; i += 64 * PAGE)
			p[i] = 1;
		madvise(p, HUGE, MADV_DONTNEED);
		_exit(0);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
	munmap(p, HUGE);
}

static void add(const char *name, const char *path, void (*once)(struct worker *))
{
	struct worker *w;

	if (nr_workers == MAX_WORKERS) {
		fprintf(stderr, "mm_stress: too many files\n");
		exit(2);
	}
	w = &workers[nr_workers];
	w->name = name;
	w->path = path;
	for (; path && *path; path++)
		w->path_hash = w->path_hash * 31 + *path;
	w->once = once;
	w->seed = nr_workers + 1;
	w->fd = -1;
	w->done = &counters[nr_workers++];
}

static void work(struct worker *w, long seconds)
{
	time_t end = time(NULL) + seconds;

	if (w->path) {
		w->fd = open(w->path, O_RDWR | O_CREAT, 0600);
		if (w->fd < 0)
			fail(w, "open");
	}
	while (time(NULL) < end && !atomic_load(wrong)) {
		w->once(w);
		atomic_fetch_add(w->done, 1);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int i, status, bad = 0;
	long seconds;

	if (argc > 1 && !strcmp(argv[1], "-w")) {
		lie = 1;
		argv++;
		argc--;
	}
	seconds = argc > 1 ? atol(argv[1]) : 0;
	if (argc < 3 || seconds < 1) {
		fprintf(stderr, "usage: mm_stress [-w] SECONDS FILE...\n");
		return 2;
	}
	counters = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counters == MAP_FAILED)
		return 1;
	wrong = (atomic_int *)((char *)counters + PAGE);
	for (i = 2; i < argc; i++) {
		add("read", argv[i], file_read);
		add("read", argv[i], file_read);
		add("change", argv[i], file_change);
		add("map", argv[i], file_map);
		if (strncmp(argv[i], "/mnt/", 5) == 0)
			add("direct", argv[i], direct_io);
	}
	add("huge", NULL, anon_huge);
	add("huge", NULL, anon_huge);
	add("pipe", NULL, pipes);
	add("offline", NULL, soft_offline);
	add("hugetlb", NULL, hugetlb);
	for (i = 0; i < nr_workers; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			perror("mm_stress: fork");
			return 1;
		}
		if (!pid)
			work(&workers[i], seconds);
	}
	for (i = 0; i < nr_workers; i++) {
		if (wait(&status) < 0 || status)
			bad = 1;
	}
	for (i = 0; i < nr_workers; i++)
		printf("%s %s %lu\n", workers[i].name,
		       workers[i].path ? workers[i].path : "-",
		       atomic_load(workers[i].done));
	return bad;
}
