/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the two halves of the harness share: driver.c, an ordinary program, and
 * cases.c and stubs.c, which are compiled as a part of a kernel. Only types
 * that mean the same in both.
 */
#ifndef CORES_H
#define CORES_H

#define CORES_MAX_WORKERS 1024
#define CORES_MAX_SECTIONS 65536
#define CORES_LINE 128

/* Written by one worker, read by others. */
struct cores_worker {
	/* What it has done since the start. */
	unsigned long ops;
	/* Moves while the worker has no pointer into an index. */
	unsigned long quiescent;
	/* The last round of a freezer that it has entered and left. */
	unsigned long entered, left;
	/* Leaves the index alone for good. */
	int gone;
} __attribute__((aligned(CORES_LINE)));

enum cores_mutant {
	CORES_RIGHT,
	CORES_LOST_PUT,		/* one reference is never put */
	CORES_EXTRA_PUT,	/* one reference is put twice */
	CORES_NO_FREEZE,	/* a freeze changes nothing */
	CORES_WRONG_ENTRY,	/* the index has another folio, where one is looked up */
	CORES_LEFT_ENTRY,	/* the index has another folio at the end */
	CORES_LIVE_TAIL,	/* a tail has a reference at the end */
	CORES_WRONG_BYTES,	/* pages lie elsewhere than the kernel's code thinks */
	CORES_SHORT_FILE,	/* the file ends before a read does */
	CORES_NOT_SHORT,	/* short reads find that folios are being removed */
};

/* In memory that all workers share, be they threads or processes. */
struct cores {
	int workers;
	enum cores_mutant mutant;
	/* What the case has set up. */
	void *world;
	/* How often a split or a freeze was done. */
	unsigned long sections;
	/* How long each frozen section took, in ticks of the TSC. */
	unsigned int ticks[CORES_MAX_SECTIONS];
	int stop __attribute__((aligned(CORES_LINE)));
	/* The round of a freezer; the last one of all. */
	unsigned long round __attribute__((aligned(CORES_LINE)));
	int over;
	/* Nonzero while the one folio of a freezer is frozen. */
	int frozen __attribute__((aligned(CORES_LINE)));
	struct cores_worker worker[CORES_MAX_WORKERS];
};

enum cores_figure {
	CORES_OPS_PER_S,	/* of all workers together */
	CORES_NS,		/* a frozen section: the mean of the middle half */
};

struct cores_case {
	const char *name;
	enum cores_figure figure;
	/* The name of a second figure: sections per second. NULL if there is none. */
	const char *second;
	/* The key of static branches that are on in this case. NULL if none is. */
	const void *branch;
	/* With fewer workers it means nothing. */
	int min_workers;
	/* The mutants that its checks have to notice. */
	unsigned int mutants;
	void (*setup)(struct cores *c);
	/* Ends soon after c->stop is set. */
	void (*work)(struct cores *c, int me);
	/* After the last worker has ended. */
	void (*check)(struct cores *c);
};

struct cores_stub {
	const char *name, *what;
};

/* A feature of CPUs for which the kernel patches its code when it boots. */
struct cores_feature {
	/* The kernel's number of it. */
	unsigned int number;
	const char *name, *what;
	/* Whether the program does it, too. */
	enum cores_patch {
		CORES_NEVER,
		CORES_ALWAYS,
		CORES_BY_CPUID,
	} patch;
};

/*
 * The cases, what of the kernel they write out themselves (in cases.c), what is
 * stubbed, and for which features the code is patched (in stubs.c). The lists
 * end with a name that is NULL.
 */
extern const struct cores_case cores_cases[];
extern const struct cores_stub cores_own[];
extern const struct cores_stub cores_stubs[];
extern const struct cores_feature cores_features[];

/* In driver.c: zeroed memory for all workers, from before the workers start. */
void *cores_alloc(unsigned long bytes, unsigned long align);
/*
 * In driver.c: ends the program, because the kernel's code did something wrong.
 * Not declared noreturn, because objtool knows the kernel's such functions only.
 */
void cores_wrong(const char *what, long found, long expected);

/*
 * In driver.c: whoever writes to this memory from now on, whole pages, ends the
 * program with this complaint; or nobody, if there is none.
 */
void cores_protect(void *at, unsigned long bytes, const char *complaint);

/* In stubs.c: sets up the memory of an index's nodes. */
void cores_stubs_init(struct cores *c);
/* In stubs.c: per-CPU variables of one more worker. Returns what GS has to be. */
unsigned long cores_percpu(void);
/* In stubs.c: waits until nobody uses what was unlinked, and frees it. */
void cores_synchronize(struct cores *c, int me);

#endif
