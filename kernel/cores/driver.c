// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ordinary half of the harness: command line, workers, clocks.
 *
 *   cores list
 *   cores run CASE WORKERS MS threads|processes CPU,... [MUTANT]
 *
 * The first prints the cases, their mutants, and what is not the kernel's. The second
 * runs a case for so many milliseconds, each worker on one of these CPUs, and
 * prints its figure, the share of the time in which the worker that had the
 * least had a CPU, and how many sections a freezer did in a second.
 *
 * Exit status: 0 if all is well, 1 if the program cannot run, 2 if the kernel's
 * code used something that there is no stub for, 3 if a check found something
 * wrong, 4 if the kernel's code crashed, or ran into a BUG or WARN of its own.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>
#include "cores.h"

#define ARENA_BYTES (96UL << 20)
#define TRAP_BYTES 4096UL
/* Beyond the time asked for: a run that does not end has failed. */
#define GRACE_S 20

/* In the file that the lab generates: one address for each missing symbol. */
extern const struct trap {
	const char *name;
	uintptr_t address;
} cores_traps[];
extern const unsigned long cores_nr_traps;

/* The kernel's struct jump_entry: distances from the fields themselves. */
struct jump {
	int32_t code, target;
	int64_t key;
};

/* Made by the linker, if the objects have static branches. */
extern struct jump __start___jump_table[] __attribute__((weak));
extern struct jump __stop___jump_table[] __attribute__((weak));

/* The kernel's struct alt_instr: distances from the fields themselves. */
struct alternative {
	int32_t code, replacement;
	uint16_t feature, flags;
	uint8_t len, replacement_len;
} __attribute__((packed));

/* In the flags: for CPUs without the feature. */
#define ALTERNATIVE_NOT 1

/* Made by the linker, as the lab has renamed the section. */
extern const struct alternative __start_alternatives[] __attribute__((weak));
extern const struct alternative __stop_alternatives[] __attribute__((weak));

/* One worker's clocks, and how all begin together. */
struct run {
	int ready, go;
	double cpu_share[CORES_MAX_WORKERS];
};

static const struct cores_case *the_case;
static struct cores *cores;
static struct run *run;
static char *arena;
static size_t arena_used;
/* The CPUs in the order in which workers get them. */
static int cpus[CORES_MAX_WORKERS], nr_cpus;
/* What GS has to be in each worker. */
static unsigned long percpu[CORES_MAX_WORKERS];
/* See cores_protect(). */
static struct {
	uintptr_t begin, end;
	const char *complaint;
} protected;

/* The mutants, and what the check says that has to notice each of them. */
static const struct {
	const char *name, *complaint;
} mutants[] = {
	[CORES_RIGHT] = { "none", "" },
	[CORES_LOST_PUT] = { "lost-put", "references left at the end" },
	[CORES_EXTRA_PUT] = { "extra-put", "folios destroyed that are in the page cache" },
	[CORES_NO_FREEZE] = { "no-freeze", "folios got while they were frozen" },
	[CORES_WRONG_ENTRY] = { "wrong-entry", "folio found at the index of another" },
	[CORES_LEFT_ENTRY] = { "left-entry", "index with another folio than at the start" },
	[CORES_LIVE_TAIL] = { "live-tail", "tails got" },
	[CORES_WRONG_BYTES] = { "wrong-bytes", "bytes read that are not the file's" },
	[CORES_SHORT_FILE] = { "short-file", "bytes returned by a read" },
	[CORES_NOT_SHORT] = { "not-short", "struct pages written to by short reads" },
};

#define NR_MUTANTS (sizeof(mutants) / sizeof(mutants[0]))

static void die(const char *what)
{
	fprintf(stderr, "cores: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The kernel's stack is aligned to 8 bytes only, and the C library needs 16. */
#define FROM_KERNEL __attribute__((force_align_arg_pointer))

/* Called by workers, while others run on: so nothing is flushed or freed. */
FROM_KERNEL void cores_wrong(const char *what, long found, long expected)
{
	dprintf(2, "cores: wrong: %s: %ld, expected %ld\n", what, found, expected);
	_exit(3);
}

FROM_KERNEL void *cores_alloc(unsigned long bytes, unsigned long align)
{
	size_t at = (arena_used + align - 1) / align * align;

	if (at + bytes > ARENA_BYTES) {
		errno = ENOMEM;
		die("memory of the workers");
	}
	arena_used = at + bytes;
	return arena + at;
}

FROM_KERNEL void cores_protect(void *at, unsigned long bytes, const char *complaint)
{
	protected.begin = (uintptr_t)at;
	protected.end = protected.begin + (complaint ? bytes : 0);
	protected.complaint = complaint;
	if (mprotect(at, bytes, complaint ? PROT_READ : PROT_READ | PROT_WRITE))
		die("mprotect");
}

static void set_gs(unsigned long gs)
{
	if (syscall(SYS_arch_prctl, ARCH_SET_GS, gs))
		die("arch_prctl");
}

/* The symbols that there is no stub for lie where nothing is mapped. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t rip = regs[REG_RIP];
	unsigned long gs = 0;

	if (signal == SIGSEGV && at >= protected.begin && at < protected.end)
		cores_wrong(protected.complaint, 1, 0);
	syscall(SYS_arch_prctl, ARCH_GET_GS, &gs);
	/* After a call the address to return to is on the stack. */
	if (rip == at)
		rip = *(uintptr_t *)regs[REG_RSP];
	for (unsigned long i = 0; signal == SIGSEGV && i < cores_nr_traps; i++)
		if (at - cores_traps[i].address < TRAP_BYTES ||
		    at - gs - cores_traps[i].address < TRAP_BYTES) {
			dprintf(2, "cores: the kernel's code at %#lx used %s, which is not stubbed\n",
				rip, cores_traps[i].name);
			_exit(2);
		}
	dprintf(2, "cores: %s at %#lx, address %#lx\n",
		signal == SIGILL ? "BUG or WARN" : "fault", rip, at);
	_exit(4);
}

static void set_traps(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	size_t bytes = (cores_nr_traps + 1) * TRAP_BYTES;

	if (sigaction(SIGSEGV, &action, NULL) || sigaction(SIGILL, &action, NULL))
		die("sigaction");
	/* So that nothing else is mapped there. */
	if (cores_nr_traps &&
	    mmap((void *)cores_traps[0].address, bytes, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) ==
		    MAP_FAILED)
		die("mmap of the traps");
}

static void make_writable(uintptr_t at, size_t bytes)
{
	uintptr_t page = getpagesize(), begin = at / page * page;

	if (mprotect((void *)begin, at + bytes - begin, PROT_READ | PROT_WRITE | PROT_EXEC))
		die("mprotect of the code");
}

/* Makes a jump of the no-op of a static branch, as static_branch_enable() does. */
static void enable(struct jump *jump)
{
	static const unsigned char nop2[] = { 0x66, 0x90 }, nop5[] = { 0x0f, 0x1f, 0x44, 0, 0 };
	uintptr_t code = (uintptr_t)&jump->code + jump->code;
	uintptr_t target = (uintptr_t)&jump->target + jump->target;
	unsigned char *at = (unsigned char *)code;

	make_writable(code, sizeof(nop5));
	if (!memcmp(at, nop2, sizeof(nop2))) {
		int8_t distance = target - (code + sizeof(nop2));

		at[0] = 0xeb;
		memcpy(at + 1, &distance, sizeof(distance));
	} else if (!memcmp(at, nop5, sizeof(nop5))) {
		int32_t distance = target - (code + sizeof(nop5));

		at[0] = 0xe9;
		memcpy(at + 1, &distance, sizeof(distance));
	} else {
		errno = EILSEQ;
		die("static branch that is not a no-op");
	}
}

static void enable_branches(const void *key)
{
	int done = 0;

	for (struct jump *jump = __start___jump_table; jump < __stop___jump_table; jump++) {
		/* The two lowest bits are flags. */
		uintptr_t address = ((uintptr_t)&jump->key + jump->key) & ~3UL;

		if (address == (uintptr_t)key) {
			enable(jump);
			done++;
		}
	}
	errno = ENOENT;
	if (!done)
		die("static branches of this case");
}

/* The kernel's words of features are CPUID's; these are of its leaf 7. */
static int cpu_has(unsigned int feature)
{
	unsigned int a, b, c, d, word = feature / 32;

	errno = EINVAL;
	if ((word != 9 && word != 18) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
		die("features of this CPU");
	return (word == 9 ? b : d) >> feature % 32 & 1;
}

/* Puts its replacement in the place of some code, as apply_alternatives() does. */
static void replace(const struct alternative *alternative)
{
	uintptr_t code = (uintptr_t)&alternative->code + alternative->code;
	uintptr_t replacement = (uintptr_t)&alternative->replacement + alternative->replacement;
	unsigned char *at = (unsigned char *)code;
	int32_t distance;

	make_writable(code, alternative->len);
	memset(at, 0x90, alternative->len);
	memcpy(at, (void *)replacement, alternative->replacement_len);
	/* A call, to an address that is relative to it. */
	if (alternative->replacement_len == 5 && at[0] == 0xe8) {
		memcpy(&distance, at + 1, sizeof(distance));
		distance += replacement - code;
		memcpy(at + 1, &distance, sizeof(distance));
	}
}

/*
 * Patches the code for this CPU. What is for other features than those in the
 * list is left alone; the lab sees to it that there is none in what is measured.
 */
static void apply_alternatives(void)
{
	const struct alternative *a;

	for (a = __start_alternatives; a < __stop_alternatives; a++)
		for (const struct cores_feature *f = cores_features; f->name; f++)
			if (f->number == a->feature && f->patch != CORES_NEVER) {
				int has = f->patch == CORES_ALWAYS || cpu_has(f->number);

				if (has == !(a->flags & ALTERNATIVE_NOT))
					replace(a);
			}
}

static void *shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("mmap");
	/* No first touch while the clock runs. */
	memset(at, 0, bytes);
	return at;
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* The CPU of a worker: they go round if there are more workers than CPUs. */
static void bind_worker(int me)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpus[me % nr_cpus], &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		die("sched_setaffinity");
}

/*
 * Workers that wait for a CPU do not get in each other's way, and a program
 * that builds something beside them would change the figures. Without the
 * permission to come first nothing is done here: the share of the CPU tells.
 * More workers than CPUs have to take turns.
 */
static void come_first(int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (cores->workers <= nr_cpus)
		sched_setscheduler(0, SCHED_FIFO, &param);
}

static void *worker(void *arg)
{
	int me = (intptr_t)arg;
	double wall, cpu;

	bind_worker(me);
	set_gs(percpu[me]);
	come_first(1);
	__atomic_fetch_add(&run->ready, 1, __ATOMIC_SEQ_CST);
	while (!__atomic_load_n(&run->go, __ATOMIC_ACQUIRE))
		_mm_pause();
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	the_case->work(cores, me);
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
	wall = seconds(CLOCK_MONOTONIC) - wall;
	run->cpu_share[me] = cpu / wall;
	return NULL;
}

static void sleep_ms(int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&t, &t))
		;
}

/* Starts them all at once and stops them; returns ticks and seconds in between. */
static double start_and_stop(int ms, unsigned long *ticks)
{
	double begin, end;

	while (__atomic_load_n(&run->ready, __ATOMIC_SEQ_CST) < cores->workers)
		sleep_ms(1);
	begin = seconds(CLOCK_MONOTONIC);
	*ticks = __rdtsc();
	__atomic_store_n(&run->go, 1, __ATOMIC_RELEASE);
	sleep_ms(ms);
	__atomic_store_n(&cores->stop, 1, __ATOMIC_SEQ_CST);
	*ticks = __rdtsc() - *ticks;
	end = seconds(CLOCK_MONOTONIC);
	return end - begin;
}

static double with_threads(int ms, unsigned long *ticks)
{
	static pthread_t threads[CORES_MAX_WORKERS];
	double s;

	for (intptr_t i = 0; i < cores->workers; i++)
		if ((errno = pthread_create(&threads[i], NULL, worker, (void *)i)))
			die("pthread_create");
	s = start_and_stop(ms, ticks);
	for (int i = 0; i < cores->workers; i++)
		pthread_join(threads[i], NULL);
	return s;
}

/* Whichever worker fails first ends all; they get SIGKILL when this process ends. */
static void on_child(int signal)
{
	siginfo_t info = { 0 };

	(void)signal;
	if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid &&
	    (info.si_code != CLD_EXITED || info.si_status))
		_exit(info.si_code == CLD_EXITED ? info.si_status : 1);
}

static double with_processes(int ms, unsigned long *ticks)
{
	pid_t parent = getpid();
	double s;

	signal(SIGCHLD, on_child);
	for (intptr_t i = 0; i < cores->workers; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid)
			continue;
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
			_exit(1);
		worker((void *)i);
		_exit(0);
	}
	s = start_and_stop(ms, ticks);
	for (int i = 0, status; i < cores->workers; i++) {
		pid_t pid;

		while ((pid = wait(&status)) < 0 && errno == EINTR)
			;
		if (pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
			_exit(pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	return s;
}

static int by_size(const void *a, const void *b)
{
	unsigned int x = *(const unsigned int *)a, y = *(const unsigned int *)b;

	return (x > y) - (x < y);
}

static double figure(double s, unsigned long ticks)
{
	unsigned long n = cores->sections, ops = 0;

	if (the_case->figure == CORES_NS) {
		double sum = 0;

		if (n > CORES_MAX_SECTIONS)
			n = CORES_MAX_SECTIONS;
		qsort(cores->ticks, n, sizeof(cores->ticks[0]), by_size);
		/* The mean of the middle half: finer than a tick, and without interrupts. */
		for (unsigned long i = n / 4; i < n - n / 4; i++)
			sum += cores->ticks[i];
		return sum / (n - n / 4 * 2) * s * 1e9 / ticks;
	}
	for (int i = 0; i < cores->workers; i++)
		ops += cores->worker[i].ops;
	return ops / s;
}

static void list(void)
{
	for (const struct cores_case *c = cores_cases; c->name; c++) {
		printf("case %s %s %d %s", c->name, c->figure == CORES_NS ? "ns" : "ops/s",
		       c->min_workers, c->second ? c->second : "-");
		for (size_t m = 1; m < NR_MUTANTS; m++)
			if (c->mutants & 1U << m)
				printf(" %s", mutants[m].name);
		printf("\n");
	}
	for (size_t m = 1; m < NR_MUTANTS; m++)
		printf("mutant %s %s\n", mutants[m].name, mutants[m].complaint);
	for (const struct cores_stub *s = cores_own; s->name; s++)
		printf("own %s %s\n", s->name, s->what);
	for (const struct cores_stub *s = cores_stubs; s->name; s++)
		printf("stub %s %s\n", s->name, s->what);
	for (const struct cores_feature *f = cores_features; f->name; f++)
		printf("feature %u %s %s\n", f->number, f->name, f->what);
}

static int number(const char *text, int least, int most)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (*end || end == text || value < least || value > most) {
		errno = EINVAL;
		die(text);
	}
	return value;
}

/* CPU,... */
static void choose_cpus(char *list)
{
	for (char *one = strtok(list, ","); one; one = strtok(NULL, ",")) {
		if (nr_cpus == CORES_MAX_WORKERS) {
			errno = E2BIG;
			die(one);
		}
		cpus[nr_cpus++] = number(one, 0, CPU_SETSIZE - 1);
	}
	errno = EINVAL;
	if (!nr_cpus)
		die("no CPU");
}

static void run_case(char **arg)
{
	unsigned long ticks;
	double s, least = 1;
	int ms;

	for (the_case = cores_cases; the_case->name; the_case++)
		if (!strcmp(the_case->name, arg[0]))
			break;
	errno = EINVAL;
	if (!the_case->name)
		die(arg[0]);
	run = shared(sizeof(*run));
	cores = shared(sizeof(*cores));
	arena = shared(ARENA_BYTES);
	cores->workers = number(arg[1], the_case->min_workers, CORES_MAX_WORKERS);
	ms = number(arg[2], 1, 600000);
	choose_cpus(arg[4]);
	if (arg[5]) {
		while (cores->mutant < NR_MUTANTS && strcmp(mutants[cores->mutant].name, arg[5]))
			cores->mutant++;
		errno = EINVAL;
		if (cores->mutant == NR_MUTANTS)
			die(arg[5]);
	}
	if (the_case->branch)
		enable_branches(the_case->branch);
	apply_alternatives();
	for (int i = 0; i < cores->workers; i++)
		percpu[i] = cores_percpu();
	set_gs(cores_percpu());
	alarm(ms / 1000 + GRACE_S);
	the_case->setup(cores);
	/* Before the workers, which it has to stop. */
	come_first(2);
	s = strcmp(arg[3], "processes") ? with_threads(ms, &ticks) : with_processes(ms, &ticks);
	the_case->check(cores);
	for (int i = 0; i < cores->workers; i++)
		if (run->cpu_share[i] < least)
			least = run->cpu_share[i];
	printf("figure %.2f cpu %.3f sections %.2f\n", figure(s, ticks), least,
	       cores->sections / s);
}

int main(int argc, char **argv)
{
	set_traps();
	if (argc == 2 && !strcmp(argv[1], "list")) {
		list();
	} else if ((argc == 7 || argc == 8) && !strcmp(argv[1], "run") &&
		   (!strcmp(argv[5], "threads") || !strcmp(argv[5], "processes"))) {
		run_case(argv + 2);
	} else {
		fprintf(stderr, "usage: cores list\n"
				"       cores run CASE WORKERS MS threads|processes CPU,... [MUTANT]\n");
		return 1;
	}
	return 0;
}
