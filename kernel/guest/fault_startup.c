// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that fault in the pages of files while others change the address space:
 * what a process does while it starts.
 *
 * The files are dropped from the cache. Each reader touches all their pages once,
 * in an order of its own, so that several readers come to wait for the same page.
 * Meanwhile each writer does one of these again and again: `mmap` maps and unmaps
 * memory of its own, `fork` forks a child that exits at once, `protect` changes
 * the protection of a page in the middle of the first file's mapping, `none`
 * does nothing.
 *
 *	fault_startup DIR READERS FILES FILE_MIB WRITERS mmap|fork|protect|none
 *
 * Prints how many pages were touched, what the writers did, and the major and
 * minor faults of the process. Exits with 1 if a page has wrong data.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_THREADS = 64, MAX_FILES = 64, OWN = 16 * PAGE };

static struct {
	unsigned char *map[MAX_FILES];
	int files;
	size_t pages; /* of each file: a power of two */
	const char *writing;
	atomic_int over;
	atomic_long touched, written;
} all;

static unsigned char expected(int file, size_t page)
{
	return (unsigned char)(1 + (file * 31 + page * 7) % 255);
}

static void make_file(const char *dir, int number)
{
	char name[256], page[PAGE];
	int fd;

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
	all.map[number] = mmap(NULL, all.pages * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (all.map[number] == MAP_FAILED)
		err(2, "mmap");
	close(fd);
}

static void *read_all(void *arg)
{
	size_t seed = (size_t)arg;

	for (size_t i = 0; i < all.pages * all.files; i++) {
		int file = (i + seed) % all.files;
		/* An odd factor makes this a permutation of the file's pages. */
		size_t page = (i / all.files * 37 + seed / 2 * 64) % all.pages;
		unsigned char found = *(volatile unsigned char *)(all.map[file] + page * PAGE);

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

static void *write_again_and_again(void *arg)
{
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
		default:
			return NULL;
		}
		atomic_fetch_add(&all.written, 1);
		usleep(1000);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t reader[MAX_THREADS], writer[MAX_THREADS];
	struct rusage before, after;
	int readers, writers;

	if (argc != 7)
		errx(2, "usage: fault_startup DIR READERS FILES FILE_MIB WRITERS mmap|fork|protect|none");
	readers = atoi(argv[2]);
	all.files = atoi(argv[3]);
	all.pages = (size_t)atoi(argv[4]) * (1 << 20) / PAGE;
	writers = atoi(argv[5]);
	all.writing = argv[6];
	if (readers < 1 || readers > MAX_THREADS || writers < 0 || writers > MAX_THREADS ||
	    all.files < 1 || all.files > MAX_FILES || !all.pages || all.pages & (all.pages - 1))
		errx(2, "a number is out of range");
	for (int i = 0; i < all.files; i++)
		make_file(argv[1], i);
	getrusage(RUSAGE_SELF, &before);
	for (int i = 0; i < writers; i++)
		if (pthread_create(&writer[i], NULL, write_again_and_again, NULL))
			errx(2, "pthread_create");
	for (size_t i = 0; i < (size_t)readers; i++)
		if (pthread_create(&reader[i], NULL, read_all, (void *)i))
			errx(2, "pthread_create");
	for (int i = 0; i < readers; i++)
		pthread_join(reader[i], NULL);
	atomic_store(&all.over, 1);
	for (int i = 0; i < writers; i++)
		pthread_join(writer[i], NULL);
	getrusage(RUSAGE_SELF, &after);
	printf("pages %ld\nwrites %ld\nmajor %ld\nminor %ld\n", atomic_load(&all.touched),
	       atomic_load(&all.written), after.ru_majflt - before.ru_majflt,
	       after.ru_minflt - before.ru_minflt);
	return 0;
}
