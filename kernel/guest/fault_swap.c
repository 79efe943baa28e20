// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that page an anonymous range out, and threads that read it through, so
 * that faults find their page swapped out, being read, or about to be written.
 *
 *	fault_swap MIB PAGERS READERS FAULTS
 *
 * It ends after so many major faults, which is what costs reads of the disk: a
 * round through memory that happens to be there costs nothing, so a number of
 * rounds says little. Prints how long that took, the pages that were read, how often a reader and a
 * pager came to the end of the range, and the faults. Exits with 1 if a page has
 * wrong data.
 */
#define _GNU_SOURCE
#include <err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MAX_THREADS = 64, CHUNK = 64 * PAGE };

static struct {
	unsigned char *range;
	size_t size;
	atomic_int over;
	atomic_long touched, ins, outs;
} all;

static unsigned char expected(size_t at)
{
	return (unsigned char)(1 + at / PAGE * 7 % 255);
}

/* A round may find nothing to do, and would be followed by the next at once. */
static void rest(void)
{
	usleep(1000);
}

static void *page_out(void *arg)
{
	size_t at = (size_t)arg / CHUNK * CHUNK;

	for (; !atomic_load(&all.over); at += CHUNK) {
		if (at >= all.size) {
			at = 0;
			atomic_fetch_add(&all.outs, 1);
			rest();
		}
		if (madvise(all.range + at, CHUNK, MADV_PAGEOUT))
			err(2, "madvise(MADV_PAGEOUT)");
	}
	return NULL;
}

static void *read_through(void *arg)
{
	size_t at = (size_t)arg / CHUNK * CHUNK;

	for (; !atomic_load(&all.over); at += PAGE) {
		unsigned char found;

		if (at >= all.size) {
			at = 0;
			atomic_fetch_add(&all.ins, 1);
			rest();
		}
		found = *(volatile unsigned char *)(all.range + at);
		if (found != expected(at))
			errx(1, "page %zu: %d instead of %d", at / PAGE, found, expected(at));
		atomic_fetch_add(&all.touched, 1);
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
	pthread_t thread[2 * MAX_THREADS];
	int pagers, readers, faults;
	long began;
	struct rusage before, now;

	if (argc != 5)
		errx(2, "usage: fault_swap MIB PAGERS READERS FAULTS");
	all.size = (size_t)atoi(argv[1]) << 20;
	pagers = atoi(argv[2]);
	readers = atoi(argv[3]);
	faults = atoi(argv[4]);
	if (!all.size || pagers < 0 || pagers > MAX_THREADS || readers < 1 ||
	    readers > MAX_THREADS || faults < 1)
		errx(2, "a number is out of range");
	all.range = mmap(NULL, all.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (all.range == MAP_FAILED)
		err(2, "mmap");
	for (size_t at = 0; at < all.size; at += PAGE)
		memset(all.range + at, expected(at), PAGE);
	getrusage(RUSAGE_SELF, &before);
	began = microseconds();
	for (int i = 0; i < pagers + readers; i++) {
		/* They begin at different places. */
		size_t at = all.size / (pagers + readers) * i;
		void *(*work)(void *) = i < pagers ? page_out : read_through;

		if (pthread_create(&thread[i], NULL, work, (void *)at))
			errx(2, "pthread_create");
	}
	do {
		usleep(10000);
		getrusage(RUSAGE_SELF, &now);
	} while (now.ru_majflt - before.ru_majflt < faults);
	began = microseconds() - began;
	atomic_store(&all.over, 1);
	for (int i = 0; i < pagers + readers; i++)
		pthread_join(thread[i], NULL);
	printf("microseconds %ld\n", began);
	printf("pages %ld\nswap-in-rounds %ld\npage-out-rounds %ld\nmajor %ld\n",
	       atomic_load(&all.touched), atomic_load(&all.ins), atomic_load(&all.outs),
	       now.ru_majflt - before.ru_majflt);
	return 0;
}
