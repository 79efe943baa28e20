// SPDX-License-Identifier: GPL-2.0-only
/*
 * Workers that take and drop page references in every way that user space can
 * cause, at the same time, for SECONDS:
 *
 *   mm_stress [-w KIND] SECONDS FILE...
 *
 * For each FILE there are two readers, a writer that truncates and punches holes,
 * a mapper that pages its range out, and, on /mnt, direct I/O, which pins. The
 * other workers have anonymous memory: huge pages that are split, forked and
 * swapped; vmsplice and tee, which take references through a pipe; soft
 * offlining; hugetlb.
 *
 * Prints how often each worker has done its work. A turn that had nothing to do
 * is not counted. If a worker sees wrong data, the program fails; the kernel's
 * complaints are in the kernel's log. With -w, only the workers of this kind run,
 * beside the writers, and what they check is written wrong: if the program does
 * not fail then, the worker cannot notice wrong data.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
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
	/* One turn; returns whether it did the work. */
	bool (*once)(struct worker *w);
	int fd;
	unsigned int seed;
	char *mem;
	atomic_ulong *done;
};

static atomic_ulong *counters;
static atomic_int *over;
static const char *wrong_kind;
static struct worker workers[MAX_WORKERS];
static int nr_workers;

static void give_up(struct worker *w, const char *what, const char *why)
{
	fprintf(stderr, "mm_stress: %s %s: %s%s\n", w->name,
		w->path ? w->path : "-", what, why);
	atomic_store(over, 1);
	_exit(1);
}

static void fail(struct worker *w, const char *what)
{
	char why[80];

	snprintf(why, sizeof(why), " failed: %s", strerror(errno));
	give_up(w, what, why);
}

static void wrong_data(struct worker *w, const char *what)
{
	give_up(w, "wrong data: ", what);
}

/* What a worker adds to its data: 1 if it has to be wrong, else 0. */
static int error_of(struct worker *w)
{
	return wrong_kind && !strcmp(wrong_kind, w->name);
}

static long pick(struct worker *w, long n)
{
	w->seed = w->seed * 1103515245u + 12345u;
	return (w->seed >> 8) % n;
}

/*
 * Every word of a page of a file holds the file's hash and the page's number. The
 * number is multiplied by an odd constant, so that the words of two pages differ
 * in more than one byte.
 */
static unsigned long owner(struct worker *w, long index)
{
	return (unsigned long)w->path_hash << 32 | (unsigned int)(index + 1) * 0x9e3779b1u;
}

/*
 * Every byte must be the page's own, or 0 if it is in a hole. Bytes are compared
 * and not words, because a reader beside a writer may see half of a word written.
 */
static void check_words(struct worker *w, const unsigned long *page, long words,
			long index)
{
	unsigned long own = owner(w, index);
	char what[120];
	long i, b;

	for (i = 0; i < words; i++) {
		unsigned long word = page[i];

		if (!word || word == own)
			continue;
		for (b = 0; b < 64; b += 8) {
			unsigned char byte = word >> b;

			if (!byte || byte == (unsigned char)(own >> b))
				continue;
			snprintf(what, sizeof(what),
				 "page %ld has %#lx at byte %ld, not %#lx",
				 index, word, i * 8, own);
			wrong_data(w, what);
		}
	}
}

static void check(struct worker *w, const unsigned long *page, long index)
{
	check_words(w, page, PAGE / 8, index);
}

static void fill(struct worker *w, unsigned long *page, long index)
{
	int i;

	for (i = 0; i < PAGE / 8; i++)
		page[i] = owner(w, index);
}

/* Whole pages, and more often a few bytes, which the kernel may read in another way. */
static bool file_read(struct worker *w)
{
	unsigned long page[PAGE / 8];
	long index = pick(w, FILE_PAGES);
	ssize_t n;

	if (pick(w, 4)) {
		n = pread(w->fd, page, 64, index * PAGE + 64 * pick(w, PAGE / 64));
		if (n < 0)
			fail(w, "pread");
		check_words(w, page, n / 8, index);
		return n == 64;
	}
	n = pread(w->fd, page, PAGE, index * PAGE);
	if (n < 0)
		fail(w, "pread");
	if (n == PAGE)
		check(w, page, index);
	return n == PAGE;
}

static bool file_change(struct worker *w)
{
	unsigned long page[PAGE / 8];
	long index = pick(w, FILE_PAGES);
	ssize_t n;
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
		/* Has no effect on some file systems, and on pages in use. */
		posix_fadvise(w->fd, 0, 0, POSIX_FADV_DONTNEED);
		break;
	default:
		for (i = 0; i < 32 && index + i < FILE_PAGES; i++) {
			fill(w, page, index + i + !!wrong_kind);
			n = pwrite(w->fd, page, PAGE, (index + i) * PAGE);
			if (n < 0 && errno != ENOSPC && errno != ENOMEM)
				fail(w, "pwrite");
		}
	}
	return true;
}

static sigjmp_buf no_page;

static void on_sigbus(int signal)
{
	(void)signal;
	siglongjmp(no_page, 1);
}

/* Copies a page of a mapping; fails beyond the end of a file that has shrunk. */
static bool copy_mapped(unsigned long *to, const void *from)
{
	if (sigsetjmp(no_page, 1))
		return false;
	memcpy(to, from, PAGE);
	return true;
}

static bool file_map(struct worker *w)
{
	long index = pick(w, FILE_PAGES - 64), seen = 0, i;
	unsigned long page[PAGE / 8];
	unsigned char in[64];
	char *p;

	signal(SIGBUS, on_sigbus);
	p = mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, w->fd, index * PAGE);
	if (p == MAP_FAILED)
		fail(w, "mmap");
	if (!mincore(p, 64 * PAGE, in))
		madvise(p, 64 * PAGE, MADV_WILLNEED);
	for (i = 0; i < 64; i++)
		madvise(p + i * PAGE, PAGE, 22 /* MADV_POPULATE_READ */);
	for (i = 0; i < 64; i++) {
		if (!copy_mapped(page, p + i * PAGE))
			continue;
		check(w, page, index + i);
		seen++;
	}
	madvise(p, 64 * PAGE, MADV_PAGEOUT);
	munmap(p, 64 * PAGE);
	return seen;
}

static bool anon_huge(struct worker *w)
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
		*(long *)(at + i * PAGE) = i + 1 + error_of(w);
	pid = fork();
	if (!pid) {
		for (i = 0; i < 512; i += 7)
			*(long *)(at + i * PAGE) = -1;
		madvise(at, HUGE / 2, MADV_DONTNEED);
		for (i = 256; i < 512; i++) {
			if (*(long *)(at + i * PAGE) != (i % 7 ? i + 1 : -1))
				wrong_data(w, "a child's anonymous memory");
		}
		_exit(0);
	}
	madvise(at + HUGE / 4, HUGE / 4, MADV_PAGEOUT);
	/* Unmapping a part queues the huge page for splitting. */
	munmap(at, 3 * PAGE);
	for (i = 3; i < 512; i++) {
		if (*(long *)(at + i * PAGE) != i + 1)
			wrong_data(w, "anonymous memory");
	}
	if (pid > 0 && waitpid(pid, &status, 0) != pid)
		fail(w, "waitpid");
	munmap(at + 3 * PAGE, HUGE - 3 * PAGE);
	munmap(p, 2 * HUGE);
	return pid > 0 && !status;
}

/* Maps memory of the worker's own, once. */
static void own_memory(struct worker *w, size_t bytes)
{
	if (w->mem)
		return;
	w->mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w->mem == MAP_FAILED)
		fail(w, "mmap");
}

static bool direct_io(struct worker *w)
{
	long index = pick(w, FILE_PAGES), i;
	ssize_t n;
	pid_t pid;
	int fd;

	own_memory(w, 64 * PAGE);
	fd = open(w->path, O_RDWR | O_DIRECT);
	if (fd < 0)
		fail(w, "O_DIRECT");
	/* No page of a file has these bytes, so a page that is not read is noticed. */
	memset(w->mem, 0xa5, 64 * PAGE);
	/* The read pins pages while the fork makes them copy-on-write. */
	pid = fork();
	if (!pid)
		_exit(0);
	n = pread(fd, w->mem, 64 * PAGE, index * PAGE);
	if (n < 0 && errno != EINVAL)
		fail(w, "direct pread");
	for (i = 0; i < n / PAGE; i++)
		check(w, (unsigned long *)(w->mem + i * PAGE), index + i);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	close(fd);
	return pid > 0 && n >= PAGE;
}

/* Reads a pipe, closed for writing, in which every byte must be this one. */
static void drain(struct worker *w, int fd, unsigned char byte)
{
	unsigned char buf[PAGE];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0) {
		/* The first byte is right, and each equals the next. */
		if (buf[0] != byte || memcmp(buf, buf + 1, n - 1))
			wrong_data(w, "a page in a pipe");
	}
	if (n < 0)
		fail(w, "read");
}

static bool pipes(struct worker *w)
{
	unsigned char byte = 1 + pick(w, 250);
	struct iovec iov;
	int a[2], b[2];
	bool teed;

	own_memory(w, 8 * PAGE);
	if (pipe(a) || pipe(b))
		fail(w, "pipe");
	memset(w->mem, byte + error_of(w), 8 * PAGE);
	iov.iov_base = w->mem;
	iov.iov_len = 8 * PAGE;
	teed = vmsplice(a[1], &iov, 1, SPLICE_F_NONBLOCK) > 0 &&
	       tee(a[0], b[1], 4 * PAGE, SPLICE_F_NONBLOCK) > 0;
	/* From here on, only the pipes' references keep the pages. */
	madvise(w->mem, 8 * PAGE, MADV_DONTNEED);
	close(a[1]);
	close(b[1]);
	drain(w, a[0], byte);
	drain(w, b[0], byte);
	close(a[0]);
	close(b[0]);
	return teed;
}

/* Takes pages out of use for good, so only OFFLINE_MAX of them. */
static bool soft_offline(struct worker *w)
{
	static int taken;
	bool took;
	char *p;

	if (taken >= OFFLINE_MAX) {
		usleep(100000);
		return false;
	}
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		fail(w, "mmap");
	*p = 7 + error_of(w);
	took = !madvise(p, PAGE, MADV_SOFT_OFFLINE);
	taken += took;
	if (*p != 7)
		wrong_data(w, "after soft offlining");
	munmap(p, PAGE);
	usleep(20000);
	return took;
}

static bool hugetlb(struct worker *w)
{
	char *p = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	int status;
	pid_t pid;
	long i;

	if (p == MAP_FAILED) {
		usleep(1000);
		return false;
	}
	/* The pool may be emptied meanwhile: then SIGBUS ends only the child. */
	pid = fork();
	if (!pid) {
		for (i = 0; i < HUGE / PAGE; i++)
			*(long *)(p + i * PAGE) = i + 1 + error_of(w);
		for (i = 0; i < HUGE / PAGE; i++) {
			if (*(long *)(p + i * PAGE) != i + 1)
				wrong_data(w, "a huge page");
		}
		madvise(p, HUGE, MADV_DONTNEED);
		_exit(0);
	}
	if (pid > 0 && waitpid(pid, &status, 0) != pid)
		fail(w, "waitpid");
	munmap(p, HUGE);
	return pid > 0 && !status;
}

static void add(const char *name, const char *path, bool (*once)(struct worker *))
{
	struct worker *w;

	if (wrong_kind && strcmp(wrong_kind, name) && once != file_change)
		return;
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
	while (time(NULL) < end && !atomic_load(over)) {
		if (w->once(w))
			atomic_fetch_add(w->done, 1);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int i, status, bad = 0;
	long seconds;

	if (argc > 2 && !strcmp(argv[1], "-w")) {
		wrong_kind = argv[2];
		argv += 2;
		argc -= 2;
	}
	seconds = argc > 1 ? atol(argv[1]) : 0;
	if (argc < 3 || seconds < 1) {
		fprintf(stderr, "usage: mm_stress [-w KIND] SECONDS FILE...\n");
		return 2;
	}
	counters = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counters == MAP_FAILED)
		return 1;
	over = (atomic_int *)((char *)counters + PAGE);
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
