// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many threads read more file data through mappings than there is memory: each
 * maps its own file, reads a byte of every page, unmaps it, and begins again, a
 * given number of times. A fault that waits for its page and is retried too late
 * finds it reclaimed.
 *
 * With `data` the files are written first, and each byte is checked; with
 * `holes` they are only made long, and nothing has to be read from the disk.
 *
 *	fault_thrash DIR THREADS FILE_MIB ROUNDS data|holes
 *
 * Prints how long that took, and how many pages were read.
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
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_THREADS = 512 };

static struct {
	size_t pages;
	int holes, rounds;
	atomic_long touched;
} all;

/* What the first byte of a page of a file has to be. */
static unsigned char expected(int file, size_t page)
{
	return all.holes ? 0 : (unsigned char)(1 + (file * 31 + page * 7) % 255);
}

/* Makes a file, and returns it open for reading only. */
static int make_file(const char *dir, int number)
{
	char name[256], page[PAGE];
	int fd, reader;

	snprintf(name, sizeof(name), "%s/thrash-%d", dir, number);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		err(2, "%s", name);
	if (all.holes && ftruncate(fd, all.pages * PAGE))
		err(2, "ftruncate");
	for (size_t i = 0; !all.holes && i < all.pages; i++) {
		memset(page, expected(number, i), PAGE);
		if (write(fd, page, PAGE) != PAGE)
			err(2, "write");
	}
	if (fsync(fd) || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		err(2, "cannot clean and drop %s", name);
	reader = open(name, O_RDONLY);
	if (reader < 0)
		err(2, "%s", name);
	close(fd);
	return reader;
}

struct reader {
	pthread_t thread;
	int number, fd;
};

static void *read_again_and_again(void *arg)
{
	const struct reader *me = arg;

	for (int round = 0; round < all.rounds; round++) {
		unsigned char *map = mmap(NULL, all.pages * PAGE, PROT_READ, MAP_SHARED, me->fd, 0);

		if (map == MAP_FAILED)
			err(2, "mmap");
		for (size_t i = 0; i < all.pages; i++) {
			unsigned char found = *(volatile unsigned char *)(map + i * PAGE);

			if (found != expected(me->number, i))
				errx(1, "file %d, page %zu: %d instead of %d", me->number, i, found,
				     expected(me->number, i));
		}
		atomic_fetch_add(&all.touched, all.pages);
		munmap(map, all.pages * PAGE);
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
	static struct reader readers[MAX_THREADS];
	int threads;
	long began;

	if (argc != 6)
		errx(2, "usage: fault_thrash DIR THREADS FILE_MIB ROUNDS data|holes");
	threads = atoi(argv[2]);
	all.pages = (size_t)atoi(argv[3]) * (1 << 20) / PAGE;
	all.rounds = atoi(argv[4]);
	all.holes = !strcmp(argv[5], "holes");
	if (threads < 1 || threads > MAX_THREADS || !all.pages || all.rounds < 1)
		errx(2, "a number is out of range");
	for (int i = 0; i < threads; i++) {
		readers[i].number = i;
		readers[i].fd = make_file(argv[1], i);
	}
	began = microseconds();
	for (int i = 0; i < threads; i++)
		if (pthread_create(&readers[i].thread, NULL, read_again_and_again, &readers[i]))
			errx(2, "pthread_create");
	for (int i = 0; i < threads; i++)
		pthread_join(readers[i].thread, NULL);
	printf("microseconds %ld\n", microseconds() - began);
	printf("pages %ld\n", atomic_load(&all.touched));
	return 0;
}
