// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that fault in the pages of files while others change the address space:
 * what a process does while it starts.
 *
 * The files are dropped from the cache. Each reader touches all their pages once,
 * in an order of its own, so that several readers come to wait for the same page.
 * Meanwhile each writer does one of these again and again: `mmap` maps and unmaps
 * memory of its own, `fork` forks a child that exits at once, `protect` changes
 * the protection of a page in the middle of the first file's mapping, `unmap`
 * unmaps the last page of that mapping, which is beyond the file's end, and maps
 * it again, `write` opens all files for writing, writes to their pages what is
 * there already, and unmaps them, so that they are faulted in again, `none` does
 * nothing. `store` does what `unmap` does, and the readers store what is there
 * already into the pages, all in the same order, so that they are throttled while
 * the pages are written.
 *
 *	fault_startup DIR READERS FILES FILE_MIB WRITERS mmap|fork|protect|unmap|write|store|none
 *
 * Prints how long that took, how many pages were touched, what the writers did, and the major and
 * minor faults of the process. Exits with 1 if a page has wrong data.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_THREADS = 64, MAX_FILES = 64, OWN = 16 * PAGE, PASSES = 16 };

static struct {
	unsigned char *map[MAX_FILES];
	int files, fd[MAX_FILES]; /* for writing if that is what is done, else for reading */
	size_t pages; /* of each file: a power of two */
	const char *writing;
	int protection; /* of the mappings */
	atomic_int over;
	atomic_long touched, written;
} all;

static unsigned char expected(int file, size_t page)
{
	return (unsigned char)(1 + (file * 31 + page * 7) % 255);
}

/* Whether the files are written to. */
static bool is_written(void)
{
	return all.writing[0] == 'w' || all.writing[0] == 's';
}

static void make_file(const char *dir, int number)
{
	char name[256], page[PAGE];
	int fd, reader;

	snprintf(name, sizeof(name), "%s/startup-%d", dir, number);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		err(2, "%s", name);
	for (size_t i = 0; i < all.pages; i++) {
		memset(page, expected(number, i), PAGE);
		if (write(fd, page, PAGE) != PAGE)
			err(2, "write");
	}
	if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		err(2, "cannot clean and drop %s", name);
	reader = open(name, O_RDONLY);
	if (reader < 0)
		err(2, "%s", name);
	all.map[number] = mmap(NULL, (all.pages + 1) * PAGE, all.protection, MAP_SHARED,
			       all.protection & PROT_WRITE ? fd : reader, 0);
	if (all.map[number] == MAP_FAILED)
		err(2, "mmap");
	/* Else nobody has it open for writing while it is read, as with programs. */
	all.fd[number] = is_written() ? fd : reader;
	close(is_written() ? reader : fd);
}

static void *read_all(void *arg)
{
	/* While there are writes, all in the same order. */
	int passes = all.writing[0] == 'w' ? PASSES : 1;
	size_t seed = is_written() ? 0 : (size_t)arg;

	for (size_t i = 0; i < all.pages * all.files * passes; i++) {
		int file = (i + seed) % all.files;
		/* An odd factor makes this a permutation of the file's pages. */
		size_t page = (i / all.files % all.pages * 37 + seed / 2 * 64) % all.pages;
		volatile unsigned char *at = all.map[file] + page * PAGE;
		unsigned char found;

		if (all.protection & PROT_WRITE)
			*at = expected(file, page);
		found = *at;
		if (found != expected(file, page))
			errx(1, "file %d, page %zu: %d instead of %d", file, page, found,
			     expected(file, page));
		atomic_fetch_add(&all.touched, 1);
	}
	return NULL;
}

static void map_and_unmap(void)
{
	char *own = mmap(NULL, OWN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (own == MAP_FAILED)
		err(2, "mmap");
	for (size_t i = 0; i < OWN; i += PAGE)
		own[i] = 1;
	munmap(own, OWN);
}

static void fork_once(void)
{
	int pid = fork(), status;

	if (pid < 0)
		err(2, "fork");
	if (!pid)
		_exit(0);
	if (waitpid(pid, &status, 0) != pid || status)
		errx(2, "the child failed");
}

static void protect_once(void)
{
	unsigned char *page = all.map[0] + all.pages / 2 * PAGE;

	if (mprotect(page, PAGE, PROT_READ | PROT_EXEC) || mprotect(page, PAGE, PROT_READ))
		err(2, "mprotect");
}

static void unmap_once(void)
{
	unsigned char *page = all.map[0] + all.pages * PAGE;

	if (munmap(page, PAGE))
		err(2, "munmap");
	/* The address is free for a moment: nobody else here maps anything meanwhile. */
	if (mmap(page, PAGE, all.protection, MAP_SHARED | MAP_FIXED, all.fd[0], all.pages * PAGE) != page)
		err(2, "mmap");
}

static void write_once(unsigned int *seed)
{
	char page[PAGE];

	for (int file = 0; file < all.files; file++) {
		size_t number = rand_r(seed) % all.pages;

		memset(page, expected(file, number), PAGE);
		if (pwrite(all.fd[file], page, PAGE, number * PAGE) != PAGE)
			err(2, "pwrite");
		/* The pages are there, so all that faults wait for now is a folio's lock. */
		if (madvise(all.map[file], all.pages * PAGE, MADV_DONTNEED))
			err(2, "madvise");
	}
}

static void *write_again_and_again(void *arg)
{
	unsigned int seed = 1;

	(void)arg;
	while (!atomic_load(&all.over)) {
		switch (all.writing[0]) {
		case 'm':
			map_and_unmap();
			break;
		case 'f':
			fork_once();
			break;
		case 'p':
			protect_once();
			break;
		case 'w':
			write_once(&seed);
			break;
		case 's':
		case 'u':
			unmap_once();
			break;
		default:
			return NULL;
		}
		atomic_fetch_add(&all.written, 1);
		usleep(1000);
	}
	return NULL;
}

/* Of the guest's clock, by which the disk is slow. */
static long microseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	pthread_t reader[MAX_THREADS], writer[MAX_THREADS];
	struct rusage before, after;
	int readers, writers;
	long began;

	if (argc != 7)
		errx(2, "usage: fault_startup DIR READERS FILES FILE_MIB WRITERS mmap|fork|protect|unmap|write|store|none");
	readers = atoi(argv[2]);
	all.files = atoi(argv[3]);
	all.pages = (size_t)atoi(argv[4]) * (1 << 20) / PAGE;
	writers = atoi(argv[5]);
	all.writing = argv[6];
	all.protection = all.writing[0] == 's' ? PROT_READ | PROT_WRITE : PROT_READ;
	if (readers < 1 || readers > MAX_THREADS || writers < 0 || writers > MAX_THREADS ||
	    all.files < 1 || all.files > MAX_FILES || !all.pages || all.pages & (all.pages - 1))
		errx(2, "a number is out of range");
	for (int i = 0; i < all.files; i++)
		make_file(argv[1], i);
	getrusage(RUSAGE_SELF, &before);
	began = microseconds();
	for (int i = 0; i < writers; i++)
		if (pthread_create(&writer[i], NULL, write_again_and_again, NULL))
			errx(2, "pthread_create");
	for (size_t i = 0; i < (size_t)readers; i++)
		if (pthread_create(&reader[i], NULL, read_all, (void *)i))
			errx(2, "pthread_create");
	for (int i = 0; i < readers; i++)
		pthread_join(reader[i], NULL);
	began = microseconds() - began;
	atomic_store(&all.over, 1);
	for (int i = 0; i < writers; i++)
		pthread_join(writer[i], NULL);
	getrusage(RUSAGE_SELF, &after);
	printf("microseconds %ld\n", began);
	printf("pages %ld\nwrites %ld\nmajor %ld\nminor %ld\n", atomic_load(&all.touched),
	       atomic_load(&all.written), after.ru_majflt - before.ru_majflt,
	       after.ru_minflt - before.ru_minflt);
	return 0;
}
