// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many readers of one file: threads or processes, each bound to a CPU, call pread
 * at offset 0 of the same file in a loop. Runs in the lab's guest and on any
 * host. It measures the file system that FILE is on.
 *
 *   pread_bench [-t THREADS | -p PROCESSES] [-b BYTES] [-s SECONDS]
 *               [-f FILE_BYTES] [-d] FILE
 *   pread_bench -n COUNT [-b BYTES] [-f FILE_BYTES] FILE
 *   pread_bench -m COUNT [-b BYTES] [-a] FILE
 *
 * The first form prints operations per second of all workers together. The
 * second makes COUNT reads and prints nanoseconds per read, which are
 * instructions if the clock counts instructions. The third makes COUNT reads, each
 * of another page that is not cached; with -a, the kernel may read ahead. -d gives
 * each worker a file of its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORKERS 1024
#define MAX_BYTES (1 << 20)

struct slot {
	_Alignas(128) unsigned long ops;
};

/* Shared by all workers, whether they are threads or processes. */
struct shared {
	atomic_int ready, go, stop, failed;
	struct slot slots[MAX_WORKERS];
};

static struct shared *shared;
static const char *path;
static int bytes = 64, own_files, misses, ahead;
static long file_bytes = 4096;

static void die(const char *what)
{
	fprintf(stderr, "pread_bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void file_name(char *name, size_t len, int worker)
{
	if (own_files)
		snprintf(name, len, "%s.%d", path, worker);
	else
		snprintf(name, len, "%s", path);
}

static void make_file(int worker)
{
	char name[4096], page[4096];
	long done;
	int fd;

	file_name(name, sizeof(name), worker);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		die(name);
	memset(page, 'x', sizeof(page));
	for (done = 0; done < file_bytes;) {
		long part = file_bytes - done;

		/* Or a compressed disk would have next to nothing to read. */
		for (int i = 0; misses && i < (int)sizeof(page); i++)
			page[i] = random();
		ssize_t n = write(fd, page, part < 4096 ? part : 4096);

		if (n <= 0)
			die(name);
		done += n;
	}
	if (fsync(fd) || close(fd))
		die(name);
}

static int open_file(int worker)
{
	char name[4096];
	int fd;

	file_name(name, sizeof(name), worker);
	fd = open(name, O_RDONLY);
	if (fd < 0)
		die(name);
	return fd;
}

static void pin_to(int worker)
{
	int cpus = sysconf(_SC_NPROCESSORS_ONLN);
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(worker % cpus, &set);
	/* May fail in a container; readers that are not bound still read. */
	sched_setaffinity(0, sizeof(set), &set);
}

static void *work(void *arg)
{
	int worker = (int)(long)arg;
	int fd = open_file(worker);
	char *buf = malloc(bytes);
	unsigned long ops = 0;

	if (!buf)
		die("buffer");
	pin_to(worker);
	atomic_fetch_add(&shared->ready, 1);
	while (!atomic_load(&shared->go))
		sched_yield();
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		if (pread(fd, buf, bytes, 0) != bytes) {
			atomic_store(&shared->failed, 1);
			break;
		}
		ops++;
	}
	shared->slots[worker].ops = ops;
	close(fd);
	free(buf);
	return NULL;
}

static void run(int workers, int processes, double seconds)
{
	pthread_t threads[MAX_WORKERS];
	struct timespec nap = {
		.tv_sec = (long)seconds,
		.tv_nsec = (long)((seconds - (long)seconds) * 1e9),
	};
	unsigned long total = 0;
	long long start, spent;
	int i, status, bad = 0;

	for (i = 0; i < workers; i++) {
		if (processes) {
			pid_t pid = fork();

			if (pid < 0)
				die("fork");
			if (!pid) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				work((void *)(long)i);
				_exit(0);
			}
		} else if (pthread_create(&threads[i], NULL, work,
					  (void *)(long)i)) {
			die("pthread_create");
		}
	}
	while (atomic_load(&shared->ready) < workers) {
		/* A process that ends now has failed, and has said why. */
		if (processes && waitpid(-1, &status, WNOHANG) > 0)
			exit(1);
		sched_yield();
	}
	start = now_ns();
	atomic_store(&shared->go, 1);
	nanosleep(&nap, NULL);
	atomic_store(&shared->stop, 1);
	spent = now_ns() - start;
	for (i = 0; i < workers; i++) {
		if (processes) {
			if (wait(&status) < 0 || status)
				bad = 1;
		} else {
			pthread_join(threads[i], NULL);
		}
	}
	if (bad || atomic_load(&shared->failed)) {
		fprintf(stderr, "pread_bench: a worker could not read\n");
		exit(1);
	}
	for (i = 0; i < workers; i++)
		total += shared->slots[i].ops;
	printf("%s %d block_bytes %d ops_per_s %.0f\n",
	       processes ? "processes" : "threads", workers, bytes,
	       total * 1e9 / spent);
}

/* Rounds of equal length; the shortest one is printed. */
static void count(long reads)
{
	int fd = open_file(0), round;
	char *buf = malloc(bytes);
	double best = 0;
	long i;

	if (!buf)
		die("buffer");
	if (misses && !ahead && posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM))
		die("fadvise");
	for (round = 0; round < 5; round++) {
		long long start;
		double ns;

		if (misses && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			die("fadvise");
		start = now_ns();
		for (i = 0; i < reads; i++) {
			if (pread(fd, buf, bytes, misses ? i * 4096 : 0) != bytes)
				die("pread");
		}
		ns = (double)(now_ns() - start) / reads;
		if (!round || ns < best)
			best = ns;
	}
	printf("pread block_bytes %d ns %.2f\n", bytes, best);
}

int main(int argc, char **argv)
{
	int opt, workers = 1, processes = 0, i;
	double seconds = 1;
	long reads = 0;

	while ((opt = getopt(argc, argv, "t:p:b:s:f:n:m:ad")) != -1) {
		switch (opt) {
		case 't': workers = atoi(optarg); processes = 0; break;
		case 'p': workers = atoi(optarg); processes = 1; break;
		case 'b': bytes = atoi(optarg); break;
		case 's': seconds = atof(optarg); break;
		case 'f': file_bytes = atol(optarg); break;
		case 'n': reads = atol(optarg); break;
		case 'm': reads = atol(optarg); misses = 1; break;
		case 'a': ahead = 1; break;
		case 'd': own_files = 1; break;
		default: return 2;
		}
	}
	if (optind + 1 != argc || workers < 1 || workers > MAX_WORKERS ||
	    bytes < 1 || bytes > MAX_BYTES || seconds <= 0 || reads < 0) {
		fprintf(stderr,
			"usage: pread_bench [-t THREADS | -p PROCESSES | -n COUNT | -m COUNT [-a]] [-b BYTES] [-s SECONDS] [-f FILE_BYTES] [-d] FILE\n"
			"THREADS and PROCESSES are 1..%d, BYTES is 1..%d\n",
			MAX_WORKERS, MAX_BYTES);
		return 2;
	}
	if (misses)
		file_bytes = reads * 4096;
	if (file_bytes < bytes) {
		fprintf(stderr, "pread_bench: the file (%ld bytes) must hold a read (%d bytes)\n",
			file_bytes, bytes);
		return 2;
	}
	path = argv[optind];
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		die("mmap");
	for (i = 0; i < (own_files ? workers : 1); i++)
		make_file(i);
	if (reads)
		count(reads);
	else
		run(workers, processes, seconds);
	return 0;
}
