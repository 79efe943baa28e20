// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a read of a few bytes may return while somebody else changes the file:
 *
 *   read_races [-w byte|size|early] SECONDS DIRECTORY... [-- RACE...]
 *
 * In each DIRECTORY, one thread does the steps of each RACE to a file, again and
 * again, and others read up to 1000 bytes of it, in one page. With the sysctl vm.short_reads off,
 * these are ordinary reads; then the same is done with it on, if the kernel has it.
 *
 * What an ordinary read may return was derived from filemap_read(), and from
 * shmem_file_read_iter() for tmpfs. It is in the table of each race, below, with
 * the reason. Whatever the table does not have is wrong, whoever returns it:
 *
 *  - a read during which no step was made must return what the file has then;
 *  - any other must return what the table allows: so many bytes, that are zeros, or
 *    of a write that had begun before the read ended, and was neither overwritten nor
 *    cut off, punched or zeroed before the read began. Bytes outside of what is changed
 *    never differ.
 *
 * Prints the tables, how often each result was seen, and what the kernel counted
 * of short reads. With -w, the steps are wrong on purpose, and the program must
 * find that: a byte is not the one that is to be written, the file is a byte too
 * short, or a step is announced to have ended before it begins.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#define HUGE (2L << 20)
#define READERS 3
#define MOST 1000L
#define STEPS 3
/* Not a divisor of the page size, so that some pieces lie in two pages. */
#define PIECE 24L
#define APPEND_MOST (64L << 20)
/* Less than this of a race, and it has not shown anything. */
#define LEAST_ROUNDS 100
#define LEAST_READS 2000
#define LEAST_BESIDE 200

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* How much a read returned. */
enum length { NOTHING, CUT, FULL, NR_LENGTHS };

/* What it returned of the part of the file that changes. */
enum content { NONE, ONE, ZERO, ONE_ZERO, MORE, MORE_ZERO, NR_CONTENTS };

/* In what order, if there are two kinds of bytes. */
enum order { PLAIN, OLD_FIRST, NEW_FIRST, ZERO_FIRST, ZERO_LAST, MIXED, NR_ORDERS };

static const char *const lengths[] = { "nothing", "cut", "full" };
static const char *const contents[] = {
	"unchanged", "one", "zero", "one+zero", "several", "several+zero"
};
static const char *const orders[] = {
	"-", "old-first", "new-first", "zero-first", "zero-last", "mixed"
};

enum fs { EXT4 = 1, TMPFS = 2, BOTH = 3 };

/* A result that an ordinary read may have. */
struct may {
	enum length length;
	enum content content;
	enum fs fs;
	const char *because;
};

enum what { TRUNCATE, WRITE, PUNCH, ZERO_RANGE, APPEND };

/* A step, and what the file is after it: its size, and where it has zeros. */
struct step {
	enum what what;
	long from, to;
	long size;
	long zero_from, zero_to;
};

/*
 * A race: what is done to the file in each round, in which the last step is the
 * write of new bytes. The file is written to @size at first. [from, to) changes.
 */
struct race {
	const char *name;
	enum fs fs;
	long size, from, to;
	/* The same bytes in each round: only their places can be wrong. */
	bool same;
	/* Only where it is asked for, as it takes a tmpfs with huge pages. */
	bool huge;
	int nr_steps;
	struct step steps[STEPS];
	struct may may[10];
};

/* In the middle of a page, and of a word. */
#define EDGE (2 * PAGE + 1003)

#define REMOVED_WHOLE \
	"a folio that is removed keeps its bytes, and the next one has all of its own " \
	"before a read may find it up to date and the file long enough"
#define IN_PLACE \
	"the folio stays, and is changed while it is copied, as nothing keeps a change " \
	"and a copy apart"
#define LOOKED_BEFORE \
	"the size was looked at before the file was cut, the bytes are copied afterwards"
#define HOLE_FILLED \
	"another read has filled the hole with a folio of zeros, and the write goes " \
	"into it while it is copied"
#define NO_FOLIO \
	"there was no folio, and when the size was looked at, the file was long enough again"

static const struct race races[] = {
	{
		.name = "truncate-write", .fs = BOTH, .size = 4 * PAGE, .to = 4 * PAGE,
		.nr_steps = 2, .steps = {
			{ TRUNCATE, 0, 0, 0, 0, 0 },
			{ WRITE, 0, 4 * PAGE, 4 * PAGE, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, BOTH, "the file is empty in between" },
			{ FULL, ONE, BOTH, REMOVED_WHOLE },
			{ FULL, ZERO, TMPFS, NO_FOLIO },
		},
	}, {
		.name = "truncate-extend", .fs = BOTH, .size = 4 * PAGE, .to = 4 * PAGE,
		.nr_steps = 3, .steps = {
			{ TRUNCATE, 0, 0, 0, 0, 0 },
			{ TRUNCATE, 0, 4 * PAGE, 4 * PAGE, 0, 4 * PAGE },
			{ WRITE, 0, 4 * PAGE, 4 * PAGE, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, BOTH, "the file is empty in between" },
			{ FULL, ONE, BOTH, REMOVED_WHOLE },
			{ FULL, ZERO, BOTH, "the file is a hole before it is written" },
			{ FULL, ONE_ZERO, EXT4, HOLE_FILLED },
		},
	}, {
		.name = "cut-write", .fs = BOTH, .size = 3 * PAGE, .from = EDGE, .to = 3 * PAGE,
		.nr_steps = 2, .steps = {
			{ TRUNCATE, EDGE, EDGE, EDGE, 0, 0 },
			{ WRITE, EDGE, 3 * PAGE, 3 * PAGE, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, BOTH, "the file ends before" },
			{ CUT, NONE, BOTH, "the file ends here" },
			{ FULL, NONE, BOTH, "it is not cut here" },
			{ FULL, ONE, BOTH, "it was not cut, or written again" },
			{ FULL, ZERO, BOTH, LOOKED_BEFORE },
			{ FULL, ONE_ZERO, BOTH, LOOKED_BEFORE },
			{ FULL, MORE, BOTH, IN_PLACE },
			{ FULL, MORE_ZERO, BOTH, IN_PLACE },
		},
	}, {
		.name = "cut-extend", .fs = BOTH, .size = 3 * PAGE, .from = EDGE, .to = 3 * PAGE,
		.nr_steps = 3, .steps = {
			{ TRUNCATE, EDGE, EDGE, EDGE, 0, 0 },
			{ TRUNCATE, EDGE, 3 * PAGE, 3 * PAGE, EDGE, 3 * PAGE },
			{ WRITE, EDGE, 3 * PAGE, 3 * PAGE, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, BOTH, "the file ends before" },
			{ CUT, NONE, BOTH, "the file ends here" },
			{ FULL, NONE, BOTH, "it is not cut here" },
			{ FULL, ONE, BOTH, "it was not cut, or written again" },
			{ FULL, ZERO, BOTH, "what is extended is zeros until it is written" },
			{ FULL, ONE_ZERO, BOTH, IN_PLACE },
			{ FULL, MORE, BOTH, IN_PLACE },
			{ FULL, MORE_ZERO, BOTH, IN_PLACE },
		},
	}, {
		.name = "punch-part", .fs = BOTH, .size = 4 * PAGE, .from = EDGE, .to = EDGE + 1000,
		.nr_steps = 2, .steps = {
			{ PUNCH, EDGE, EDGE + 1000, 4 * PAGE, EDGE, EDGE + 1000 },
			{ WRITE, EDGE, EDGE + 1000, 4 * PAGE, 0, 0 },
		}, .may = {
			{ FULL, NONE, BOTH, "there is no hole here" },
			{ FULL, ONE, BOTH, "there is no hole yet, or not any more" },
			{ FULL, ZERO, BOTH, "the hole" },
			{ FULL, ONE_ZERO, BOTH, IN_PLACE },
			{ FULL, MORE, BOTH, IN_PLACE },
			{ FULL, MORE_ZERO, BOTH, IN_PLACE },
		},
	}, {
		.name = "punch-page", .fs = BOTH, .size = 4 * PAGE, .from = 2 * PAGE, .to = 3 * PAGE,
		.nr_steps = 2, .steps = {
			{ PUNCH, 2 * PAGE, 3 * PAGE, 4 * PAGE, 2 * PAGE, 3 * PAGE },
			{ WRITE, 2 * PAGE, 3 * PAGE, 4 * PAGE, 0, 0 },
		}, .may = {
			{ FULL, NONE, BOTH, "there is no hole here" },
			{ FULL, ONE, BOTH, REMOVED_WHOLE },
			{ FULL, ZERO, BOTH, "the hole" },
			{ FULL, ONE_ZERO, EXT4, HOLE_FILLED },
		},
	}, {
		.name = "zero-part", .fs = EXT4, .size = 4 * PAGE, .from = EDGE, .to = EDGE + 1000,
		.nr_steps = 2, .steps = {
			{ ZERO_RANGE, EDGE, EDGE + 1000, 4 * PAGE, EDGE, EDGE + 1000 },
			{ WRITE, EDGE, EDGE + 1000, 4 * PAGE, 0, 0 },
		}, .may = {
			{ FULL, NONE, EXT4, "there are no zeros here" },
			{ FULL, ONE, EXT4, "there are no zeros yet, or not any more" },
			{ FULL, ZERO, EXT4, "the zeros" },
			{ FULL, ONE_ZERO, EXT4, IN_PLACE },
			{ FULL, MORE, EXT4, IN_PLACE },
			{ FULL, MORE_ZERO, EXT4, IN_PLACE },
		},
	}, {
		.name = "zero-page", .fs = EXT4, .size = 4 * PAGE, .from = 2 * PAGE, .to = 3 * PAGE,
		.nr_steps = 2, .steps = {
			{ ZERO_RANGE, 2 * PAGE, 3 * PAGE, 4 * PAGE, 2 * PAGE, 3 * PAGE },
			{ WRITE, 2 * PAGE, 3 * PAGE, 4 * PAGE, 0, 0 },
		}, .may = {
			{ FULL, NONE, EXT4, "there are no zeros here" },
			{ FULL, ONE, EXT4, REMOVED_WHOLE },
			{ FULL, ZERO, EXT4, "the zeros" },
			{ FULL, ONE_ZERO, EXT4, HOLE_FILLED },
		},
	}, {
		.name = "overwrite", .fs = BOTH, .size = 4 * PAGE, .from = 2 * PAGE, .to = 3 * PAGE,
		.nr_steps = 1, .steps = {
			{ WRITE, 2 * PAGE, 3 * PAGE, 4 * PAGE, 0, 0 },
		}, .may = {
			{ FULL, NONE, BOTH, "it is not written here" },
			{ FULL, ONE, BOTH, "it was written before, or after" },
			{ FULL, MORE, BOTH, IN_PLACE },
		},
	}, {
		/* The file grows, and its size is the number of steps times PIECE. */
		.name = "append", .fs = BOTH, .to = APPEND_MOST, .same = true,
		.nr_steps = 1, .steps = {
			{ APPEND, 0, 0, 0, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, BOTH, "the file has not begun" },
			{ CUT, ONE, BOTH, "the file ends after a piece" },
			{ FULL, ONE, BOTH, "the size grows after the bytes are there" },
		},
	}, {
		/*
		 * Of a file in huge pages. The hole is zeroed, and then splits the
		 * page that it is in.
		 */
		.name = "split", .fs = TMPFS, .size = HUGE, .to = HUGE, .same = true, .huge = true,
		.nr_steps = 3, .steps = {
			{ PUNCH, 5 * PAGE, 6 * PAGE, HUGE, 5 * PAGE, 6 * PAGE },
			{ TRUNCATE, 0, 0, 0, 0, 0 },
			{ WRITE, 0, HUGE, HUGE, 0, 0 },
		}, .may = {
			{ NOTHING, NONE, TMPFS, "the file is empty in between" },
			{ FULL, ONE, TMPFS, REMOVED_WHOLE },
			{ FULL, ZERO, TMPFS, "the hole, or " NO_FOLIO },
			{ FULL, ONE_ZERO, TMPFS, "in the hole: " IN_PLACE },
		},
	},
};

/* What became of one read. */
struct result {
	enum length length;
	enum content content;
	enum order order;
	/* Why no ordinary read returns this, or NULL. */
	const char *wrong;
	long at;
};

/* How many steps had ended when the read began, and had begun when it ended. */
struct span {
	unsigned long ended, begun;
};

/* One file, and what happened to it. */
struct run {
	const struct race *race;
	enum fs fs;
	const char *path;
	/* Twice the number of steps that ended, and one more during a step. */
	atomic_ulong progress;
	atomic_bool over;
	/* All reads, those beside which no step was made, and those with a wrong result. */
	atomic_ulong reads, alone, wrong;
	atomic_ulong seen[NR_LENGTHS][NR_CONTENTS][NR_ORDERS];
};

static const char *wrong_kind;
static unsigned char *base;

static void die(const char *what)
{
	fprintf(stderr, "read_races: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void *allocate(size_t size)
{
	void *p = malloc(size);

	if (!p)
		die("malloc");
	return p;
}

/*
 * The byte of write @gen at @pos. Never 0. Two writes have the same byte only if
 * their numbers differ by a multiple of 255. Other places have other bytes, in no
 * order that another place would have as well.
 */
static unsigned char byte_of(long pos, unsigned long gen)
{
	return 1 + (base[pos % HUGE] + pos / HUGE + gen) % 255;
}

static void make_base(void)
{
	unsigned int x = 1;
	long i;

	base = allocate(HUGE);
	for (i = 0; i < HUGE; i++) {
		x = x * 1664525u + 1013904223u;
		base[i] = (x >> 24) % 255;
	}
}

static bool may_return(const struct race *race, enum fs fs, enum length length,
		       enum content content)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(race->may) && race->may[i].because; i++) {
		const struct may *may = &race->may[i];

		if (may->length == length && may->content == content && (may->fs & fs))
			return true;
	}
	return false;
}

/* The size of the file after @steps steps, if none is under way. */
static long size_after(const struct race *race, unsigned long steps)
{
	if (race->steps[0].what == APPEND)
		return steps * PIECE;
	if (!steps)
		return race->size;
	return race->steps[(steps - 1) % race->nr_steps].size;
}

/* The number of the newest write of which steps @steps is the last. */
static unsigned long gen_after(const struct race *race, unsigned long steps)
{
	return race->same ? 0 : steps / race->nr_steps;
}

static bool zero_after(const struct race *race, unsigned long steps, long pos)
{
	const struct step *step;

	if (!steps)
		return false;
	step = &race->steps[(steps - 1) % race->nr_steps];
	return pos >= step->zero_from && pos < step->zero_to;
}

/*
 * Whether the steps of this round that have ended have taken the byte away. Its
 * next value is that of the next write.
 */
static bool gone_after(const struct race *race, unsigned long steps, long pos)
{
	unsigned long done = steps % race->nr_steps, i;

	for (i = 0; i < done; i++) {
		const struct step *step = &race->steps[i];

		if (pos >= step->size || (pos >= step->zero_from && pos < step->zero_to))
			return true;
	}
	return false;
}

static struct result wrong(struct result r, const char *why, long at)
{
	r.wrong = why;
	r.at = at;
	return r;
}

/* Without a step meanwhile, there is one right result. */
static struct result judge_alone(const struct race *race, unsigned long steps,
				 long pos, long want, const unsigned char *buf,
				 long got, struct result r)
{
	long size = size_after(race, steps), right = size - pos, i;

	right = right < 0 ? 0 : right > want ? want : right;
	if (got != right)
		return wrong(r, "of another length than the file, which nobody changed", got);
	for (i = 0; i < got; i++) {
		bool changes = pos + i >= race->from && pos + i < race->to;
		unsigned char byte;

		byte = byte_of(pos + i, changes ? gen_after(race, steps) : 0);
		if (changes && zero_after(race, steps, pos + i))
			byte = 0;
		if (buf[i] != byte)
			return wrong(r, "not what the file had, which nobody changed", i);
	}
	return r;
}

/* What a read of @want bytes at @pos has returned, and whether an ordinary read may. */
static struct result judge(const struct race *race, enum fs fs, struct span span,
			   long pos, long want, const unsigned char *buf, long got)
{
	unsigned long low = gen_after(race, span.ended), high = gen_after(race, span.begun);
	unsigned long gen, first, last = 0, least = -1UL, most = 0;
	bool ordered_up = true, ordered_down = true, zeros = false, data = false;
	bool last_zero = false;
	struct result r = { 0 };
	int changes = 0;
	long i;

	r.length = got == want ? FULL : got ? CUT : NOTHING;
	for (i = 0; i < got; i++) {
		unsigned int key;

		if (pos + i < race->from || pos + i >= race->to) {
			if (buf[i] != byte_of(pos + i, 0))
				return wrong(r, "a byte that nobody changes is another", i);
			continue;
		}
		if ((zeros || data) && last_zero != !buf[i])
			changes++;
		last_zero = !buf[i];
		if (!buf[i]) {
			zeros = true;
			continue;
		}
		/* The first of the writes that may be seen which has this byte here. */
		first = low + (!race->same && gone_after(race, span.ended, pos + i));
		key = (buf[i] + 255 - byte_of(pos + i, first)) % 255;
		gen = first + key;
		if (gen > high)
			return wrong(r, "a byte of no write that may be seen", i);
		if (data && gen < last)
			ordered_up = false;
		if (data && gen > last)
			ordered_down = false;
		data = true;
		last = gen;
		least = gen < least ? gen : least;
		most = gen > most ? gen : most;
	}
	if (data)
		r.content = least == most ? zeros ? ONE_ZERO : ONE : zeros ? MORE_ZERO : MORE;
	else
		r.content = zeros ? ZERO : NONE;
	if (r.content == ONE_ZERO)
		r.order = changes > 1 ? MIXED : last_zero ? ZERO_LAST : ZERO_FIRST;
	else if (r.content == MORE)
		r.order = ordered_up ? OLD_FIRST : ordered_down ? NEW_FIRST : MIXED;
	else if (r.content == MORE_ZERO)
		r.order = MIXED;

	if (span.ended == span.begun)
		return judge_alone(race, span.ended, pos, want, buf, got, r);
	if (race->steps[0].what == APPEND) {
		long had = span.ended * PIECE;

		if (pos + got < (had < pos + want ? had : pos + want))
			return wrong(r, "it ends before the file did", got);
		if (pos + got > (long)(span.begun * PIECE))
			return wrong(r, "it ends behind the file", got);
		if (r.length == CUT && (pos + got) % PIECE)
			return wrong(r, "it ends where the file never did", got);
	} else if (r.length == CUT && pos + got != race->from) {
		return wrong(r, "it ends where the file never did", got);
	}
	if (race->huge && r.content == ONE_ZERO && pos / PAGE != race->steps[0].from / PAGE)
		return wrong(r, "zeroed in place where there is no hole", 0);
	if (!may_return(race, fs, r.length, r.content))
		return wrong(r, "not in the table", 0);
	return r;
}

static void report(struct run *run, struct span span, long pos, long want,
		   const unsigned char *buf, long got, struct result r)
{
	long from = r.at < 8 ? 0 : r.at - 8, i;

	flockfile(stdout);
	printf("WRONG %s: %s %s %s: %s, byte %ld of a read of %ld at %ld, steps %lu to %lu:",
	       run->race->name, lengths[r.length], contents[r.content], orders[r.order],
	       r.wrong, r.at, want, pos, span.ended, span.begun);
	for (i = from; i < got && i < from + 16; i++)
		printf(" %02x", buf[i]);
	printf("\n");
	funlockfile(stdout);
}

/* Where to read: most often at an edge of what changes, and always in one page. */
static long pick_range(struct run *run, unsigned int *seed, unsigned long ended, long *want)
{
	const struct race *race = run->race;
	static const long sizes[] = { 64, 64, 64, 64, 8, 256, MOST };
	long pos, left, end = race->size;
	unsigned int x;

	*seed = *seed * 1664525u + 1013904223u;
	x = *seed >> 8;
	*want = sizes[x % ARRAY_SIZE(sizes)];
	x /= ARRAY_SIZE(sizes);
	if (race->steps[0].what == APPEND) {
		pos = ended * PIECE - x % 48;
	} else {
		switch (x % 8) {
		case 0:
			pos = race->from - *want / 2;
			break;
		case 1:
			pos = race->from;
			break;
		case 2:
			pos = race->to - *want / 2;
			break;
		case 3:
			pos = end - *want;
			break;
		case 4:
			pos = race->from - *want;
			break;
		default:
			pos = race->from + x / 8 % (race->to - race->from);
		}
		if (pos > end - *want)
			pos = end - *want;
	}
	if (pos < 0)
		pos = 0;
	left = PAGE - pos % PAGE;
	*want = *want < left ? *want : left;
	return pos;
}

struct reader {
	pthread_t thread;
	struct run *run;
	unsigned int seed;
};

static void *read_all(void *arg)
{
	struct reader *reader = arg;
	struct run *run = reader->run;
	int fd = open(run->path, O_RDONLY);
	unsigned char buf[MOST];

	if (fd < 0)
		die(run->path);
	while (!atomic_load(&run->over)) {
		unsigned long before = atomic_load(&run->progress), after;
		struct result r;
		struct span span;
		long want, pos, got;

		pos = pick_range(run, &reader->seed, before / 2, &want);
		memset(buf, 0xee, sizeof(buf));
		got = pread(fd, buf, want, pos);
		if (got < 0)
			die("pread");
		after = atomic_load(&run->progress);
		span.ended = before / 2;
		span.begun = (after + 1) / 2;
		/* So many writes that their bytes are the same again. */
		if (gen_after(run->race, span.begun) - gen_after(run->race, span.ended) > 250)
			continue;
		r = judge(run->race, run->fs, span, pos, want, buf, got);
		atomic_fetch_add(&run->reads, 1);
		if (span.ended == span.begun)
			atomic_fetch_add(&run->alone, 1);
		if (!r.wrong)
			atomic_fetch_add(&run->seen[r.length][r.content][r.order], 1);
		else if (atomic_fetch_add(&run->wrong, 1) < 4)
			report(run, span, pos, want, buf, got, r);
	}
	close(fd);
	return NULL;
}

static void write_bytes(int fd, long from, long to, unsigned long gen)
{
	static unsigned char bytes[HUGE];
	/* The bytes of a huge page, whose generation is always 0, are made once. */
	static bool huge;
	unsigned char *buf = bytes;
	long i, n;

	if (to - from != HUGE || !huge) {
		for (i = from; i < to; i++)
			buf[i - from] = byte_of(i, gen);
	}
	huge = to - from == HUGE;
	if (wrong_kind && !strcmp(wrong_kind, "byte")) {
		buf[5] ^= 0x55;
		huge = false;
	}
	for (; from < to; from += n, buf += n) {
		n = pwrite(fd, buf, to - from, from);
		if (n <= 0)
			die("pwrite");
	}
}

/*
 * Memory that a step has freed gets another owner at once, and other bytes, so that
 * a read which is too late does not find the old ones by luck.
 */
static void reuse_memory(void)
{
	static unsigned char bytes[8 * PAGE];
	static int fds[2];

	if (!fds[1]) {
		if (pipe(fds))
			die("pipe");
		memset(bytes, 0xa5, sizeof(bytes));
	}
	/* A pipe, because unmapping memory would interrupt the readers. */
	if (write(fds[1], bytes, sizeof(bytes)) != sizeof(bytes) ||
	    read(fds[0], bytes, sizeof(bytes)) != sizeof(bytes))
		die("a pipe");
}

static void do_step(struct run *run, int fd, unsigned long nr)
{
	const struct race *race = run->race;
	const struct step *step = &race->steps[nr % race->nr_steps];
	int ret = 0;

	switch (step->what) {
	case TRUNCATE:
		ret = ftruncate(fd, step->to);
		break;
	case PUNCH:
		ret = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, step->from,
				step->to - step->from);
		break;
	case ZERO_RANGE:
		ret = fallocate(fd, FALLOC_FL_ZERO_RANGE, step->from, step->to - step->from);
		break;
	case WRITE:
		write_bytes(fd, step->from, step->to, gen_after(race, nr + 1));
		break;
	case APPEND:
		write_bytes(fd, nr * PIECE, (nr + 1) * PIECE, 0);
		break;
	}
	if (ret)
		die(race->name);
	if (step->what != WRITE && step->what != APPEND)
		reuse_memory();
	if (wrong_kind && !strcmp(wrong_kind, "size") && size_after(race, nr + 1) &&
	    ftruncate(fd, size_after(race, nr + 1) - 1))
		die("ftruncate");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Wrong steps have to be noticed. Of right ones, the lab asks for about as much of each run. */
static bool shows_something(struct run *run, unsigned long steps)
{
	unsigned long alone = atomic_load(&run->alone), reads = atomic_load(&run->reads);

	if (wrong_kind)
		return atomic_load(&run->wrong);
	return steps >= LEAST_ROUNDS * (unsigned long)run->race->nr_steps &&
	       reads >= LEAST_READS && reads - alone >= LEAST_BESIDE;
}

/* Not for long: readers that make no progress are no reason to wait. */
static void wait_for_reads(struct run *run, unsigned long more)
{
	unsigned long until = atomic_load(&run->reads) + more;
	double start = now();

	while (atomic_load(&run->reads) < until && now() - start < 0.002)
		sched_yield();
}

static const char *const events[] = {
	"short_read_done", "short_read_absent", "short_read_stale", "short_read_aging",
	"short_read_removed", "short_read_resized", "short_read_fault", "short_read_user",
	"thp_split_page",
};

/* The kernel's counters; those that it does not have are 0. */
static void count_events(unsigned long *counts)
{
	FILE *f = fopen("/proc/vmstat", "r");
	unsigned long value;
	char name[64];
	size_t i;

	if (!f)
		die("/proc/vmstat");
	memset(counts, 0, sizeof(*counts) * ARRAY_SIZE(events));
	while (fscanf(f, "%63s %lu", name, &value) == 2) {
		for (i = 0; i < ARRAY_SIZE(events); i++) {
			if (!strcmp(name, events[i]))
				counts[i] = value;
		}
	}
	fclose(f);
}

/* Runs one race; returns how many results were wrong. */
static unsigned long run_race(const struct race *race, const char *fs_name, enum fs fs,
			      const char *path, const char *mode, double seconds)
{
	unsigned long before[ARRAY_SIZE(events)], after[ARRAY_SIZE(events)], nr = 0, rounds, wait;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), l, c, o;
	bool early = wrong_kind && !strcmp(wrong_kind, "early");
	struct run *run = allocate(sizeof(*run));
	struct reader readers[READERS];
	double start, spent;
	size_t i;

	if (fd < 0)
		die(path);
	memset(run, 0, sizeof(*run));
	run->race = race;
	run->fs = fs;
	run->path = path;
	if (race->size) {
		const char *kind = wrong_kind;

		wrong_kind = NULL;
		write_bytes(fd, 0, race->size, 0);
		wrong_kind = kind;
	}
	count_events(before);
	for (i = 0; i < READERS; i++) {
		readers[i].run = run;
		readers[i].seed = 77 * i + 1;
		if (pthread_create(&readers[i].thread, NULL, read_all, &readers[i]))
			die("pthread_create");
	}
	start = now();
	do {
		atomic_fetch_add(&run->progress, early ? 2 : 1);
		/* At least one of them begins after the claim, even if there is one CPU for all. */
		if (early)
			wait_for_reads(run, READERS + 1);
		do_step(run, fd, nr++);
		atomic_fetch_add(&run->progress, early ? 0 : 1);
		/* Now and then, so that each state is read by itself, too. */
		wait = nr * 2654435761u >> 16 & 31;
		if (wait < 8)
			wait_for_reads(run, wait);
		spent = now() - start;
		if (wrong_kind && atomic_load(&run->wrong))
			break;
		if (nr * PIECE > APPEND_MOST - 2 * PAGE && race->steps[0].what == APPEND)
			break;
	} while (spent < seconds || (spent < 60 && !shows_something(run, nr)));
	atomic_store(&run->over, true);
	for (i = 0; i < READERS; i++)
		pthread_join(readers[i].thread, NULL);
	count_events(after);
	close(fd);
	unlink(path);

	rounds = nr / race->nr_steps;
	printf("run %s %s %s rounds %lu reads %lu alone %lu wrong %lu", fs_name, race->name, mode,
	       rounds, atomic_load(&run->reads), atomic_load(&run->alone),
	       atomic_load(&run->wrong));
	for (i = 0; i < ARRAY_SIZE(events); i++)
		printf(" %s %lu", events[i], after[i] - before[i]);
	printf("\n");
	for (l = 0; l < NR_LENGTHS; l++) {
		for (c = 0; c < NR_CONTENTS; c++) {
			for (o = 0; o < NR_ORDERS; o++) {
				unsigned long n = atomic_load(&run->seen[l][c][o]);

				if (n)
					printf("seen %s %s %s %s %s %s %lu\n", fs_name, race->name,
					       mode, lengths[l], contents[c], orders[o], n);
			}
		}
	}
	fflush(stdout);
	nr = atomic_load(&run->wrong);
	free(run);
	return nr;
}

static void print_table(const struct race *race, const char *fs_name, enum fs fs)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(race->may) && race->may[i].because; i++) {
		const struct may *may = &race->may[i];

		if (may->fs & fs)
			printf("may %s %s %s %s: %s\n", fs_name, race->name, lengths[may->length],
			       contents[may->content], may->because);
	}
}

static const struct race *race_named(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(races); i++) {
		if (!strcmp(races[i].name, name))
			return &races[i];
	}
	fprintf(stderr, "read_races: no race %s\n", name);
	exit(2);
}

/* A result that is made up, and what it is. @gens has a digit for each byte, or 'z' or '?'. */
struct made_up {
	const char *race;
	enum fs fs;
	unsigned long ended, begun;
	long pos, want;
	const char *gens;
	enum length length;
	enum content content;
	enum order order;
	bool right;
};

static const struct made_up made_ups[] = {
	/* The old and the new file, and neither. */
	{ "truncate-write", EXT4, 2, 4, 64, 4, "1111", FULL, ONE, PLAIN, true },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "2222", FULL, ONE, PLAIN, true },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "", NOTHING, NONE, PLAIN, true },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "1122", FULL, MORE, OLD_FIRST, false },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "3333", FULL, NONE, PLAIN, false },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "0000", FULL, NONE, PLAIN, false },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "11", CUT, ONE, PLAIN, false },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "11?1", FULL, NONE, PLAIN, false },
	{ "truncate-write", EXT4, 2, 4, 64, 4, "zzzz", FULL, ZERO, PLAIN, false },
	{ "truncate-write", TMPFS, 2, 4, 64, 4, "zzzz", FULL, ZERO, PLAIN, true },
	/* It was gone before the read began. */
	{ "truncate-write", EXT4, 3, 4, 64, 4, "1111", FULL, ONE, PLAIN, false },
	{ "truncate-write", EXT4, 3, 4, 64, 4, "2222", FULL, ONE, PLAIN, true },
	{ "punch-page", EXT4, 3, 4, 2 * PAGE, 4, "1111", FULL, ONE, PLAIN, false },
	{ "cut-write", EXT4, 3, 4, EDGE - 2, 4, "0011", FULL, ONE, PLAIN, false },
	{ "cut-write", EXT4, 3, 4, EDGE - 2, 4, "0022", FULL, ONE, PLAIN, true },
	/* Nobody changed it. */
	{ "truncate-write", EXT4, 2, 2, 64, 4, "1111", FULL, ONE, PLAIN, true },
	{ "truncate-write", EXT4, 2, 2, 64, 4, "", NOTHING, NONE, PLAIN, false },
	{ "truncate-write", TMPFS, 2, 2, 64, 4, "zzzz", FULL, ZERO, PLAIN, false },
	{ "truncate-write", EXT4, 3, 3, 64, 4, "", NOTHING, NONE, PLAIN, true },
	{ "truncate-write", EXT4, 3, 3, 64, 4, "1111", FULL, ONE, PLAIN, false },
	{ "truncate-extend", EXT4, 5, 5, 64, 4, "zzzz", FULL, ZERO, PLAIN, true },
	{ "truncate-extend", EXT4, 5, 5, 64, 4, "1111", FULL, ONE, PLAIN, false },
	{ "truncate-extend", EXT4, 3, 6, 64, 4, "z2z2", FULL, ONE_ZERO, MIXED, true },
	{ "truncate-extend", EXT4, 3, 6, 64, 4, "z1z2", FULL, MORE_ZERO, MIXED, false },
	{ "truncate-extend", TMPFS, 3, 6, 64, 4, "z2z2", FULL, ONE_ZERO, MIXED, false },
	/* Around the end of a file that is cut; the first two bytes never change. */
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "00", CUT, NONE, PLAIN, true },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "0", CUT, NONE, PLAIN, false },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "001", CUT, ONE, PLAIN, false },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "", NOTHING, NONE, PLAIN, true },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "001z", FULL, ONE_ZERO, ZERO_LAST, true },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "00z2", FULL, ONE_ZERO, ZERO_FIRST, true },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "0z22", FULL, NONE, PLAIN, false },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "0122", FULL, NONE, PLAIN, false },
	{ "cut-write", EXT4, 2, 4, EDGE - 2, 4, "0021", FULL, MORE, NEW_FIRST, true },
	{ "cut-write", EXT4, 2, 2, EDGE - 2, 4, "001z", FULL, ONE_ZERO, ZERO_LAST, false },
	/* A hole in a page that stays, and one of a whole page. */
	{ "punch-part", EXT4, 2, 4, EDGE, 4, "1z21", FULL, MORE_ZERO, MIXED, true },
	{ "punch-part", EXT4, 2, 4, EDGE, 4, "", NOTHING, NONE, PLAIN, false },
	{ "punch-page", EXT4, 2, 4, 2 * PAGE, 4, "1z21", FULL, MORE_ZERO, MIXED, false },
	{ "punch-page", EXT4, 2, 4, 2 * PAGE, 4, "1112", FULL, MORE, OLD_FIRST, false },
	{ "punch-page", EXT4, 2, 4, 2 * PAGE, 4, "zz22", FULL, ONE_ZERO, ZERO_FIRST, true },
	{ "overwrite", EXT4, 1, 3, 2 * PAGE, 4, "1231", FULL, MORE, MIXED, true },
	{ "overwrite", EXT4, 1, 3, 2 * PAGE, 4, "123z", FULL, MORE_ZERO, MIXED, false },
	{ "overwrite", EXT4, 1, 1, 2 * PAGE, 4, "1111", FULL, ONE, PLAIN, true },
	{ "overwrite", EXT4, 2, 2, 2 * PAGE, 4, "1111", FULL, NONE, PLAIN, false },
	/* The file had 2 pieces, and may have 4. */
	{ "append", EXT4, 2, 4, 46, 4, "00", CUT, ONE, PLAIN, true },
	{ "append", EXT4, 2, 4, 46, 4, "0000", FULL, ONE, PLAIN, true },
	{ "append", EXT4, 2, 4, 46, 4, "0", CUT, ONE, PLAIN, false },
	{ "append", EXT4, 2, 4, 46, 4, "000", CUT, ONE, PLAIN, false },
	{ "append", EXT4, 2, 4, 94, 4, "0000", FULL, ONE, PLAIN, false },
	{ "append", EXT4, 2, 4, 46, 4, "00zz", FULL, ONE_ZERO, ZERO_LAST, false },
	{ "append", TMPFS, 2, 4, 46, 4, "00zz", FULL, ONE_ZERO, ZERO_LAST, false },
	{ "append", TMPFS, 2, 4, 48, 4, "zzzz", FULL, ZERO, PLAIN, false },
	{ "split", TMPFS, 1, 2, 7 * PAGE, 4, "0000", FULL, ONE, PLAIN, true },
	{ "split", TMPFS, 1, 1, 5 * PAGE, 4, "zzzz", FULL, ZERO, PLAIN, true },
	{ "split", TMPFS, 1, 1, 7 * PAGE, 4, "zzzz", FULL, ZERO, PLAIN, false },
	{ "split", TMPFS, 1, 2, 7 * PAGE, 4, "????", FULL, NONE, PLAIN, false },
	{ "split", TMPFS, 0, 1, 5 * PAGE, 4, "00zz", FULL, ONE_ZERO, ZERO_LAST, true },
	{ "split", TMPFS, 0, 1, 7 * PAGE, 4, "00zz", FULL, ONE_ZERO, ZERO_LAST, false },
	{ "split", TMPFS, 1, 1, 5 * PAGE, 4, "00zz", FULL, ONE_ZERO, ZERO_LAST, false },
};

/* The judge must know each of them. */
static void test_judge(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(made_ups); i++) {
		const struct made_up *m = &made_ups[i];
		const struct race *race = race_named(m->race);
		struct span span = { m->ended, m->begun };
		long got = strlen(m->gens), k;
		unsigned char buf[16];
		struct result r;

		for (k = 0; k < got; k++) {
			if (m->gens[k] == 'z')
				buf[k] = 0;
			else if (m->gens[k] == '?')
				buf[k] = byte_of(m->pos + k + 1, 0) ^ 0x80;
			else
				buf[k] = byte_of(m->pos + k, m->gens[k] - '0');
		}
		r = judge(race, m->fs, span, m->pos, m->want, buf, got);
		/* Bytes that are of no write have no kind either. */
		if (!r.wrong != m->right || r.length != m->length ||
		    (r.content != NONE && (r.content != m->content || r.order != m->order))) {
			printf("the judge errs in made-up result %zu: %s %s %s, %s\n", i,
			       lengths[r.length], contents[r.content], orders[r.order],
			       r.wrong ? r.wrong : "right");
			exit(3);
		}
	}
	printf("judged %zu made-up results\n", ARRAY_SIZE(made_ups));
}

static const char short_reads[] = "/proc/sys/vm/short_reads";

/* Whether short reads are on: '0' or '1', or 0 if the kernel has none. */
static char get_short_reads(void)
{
	int fd = open(short_reads, O_RDONLY);
	char value = 0;

	if (fd < 0)
		return 0;
	if (read(fd, &value, 1) != 1)
		die(short_reads);
	close(fd);
	return value;
}

static void set_short_reads(char value)
{
	int fd = open(short_reads, O_WRONLY);

	if (fd < 0 || write(fd, &value, 1) != 1)
		die(short_reads);
	close(fd);
}

int main(int argc, char **argv)
{
	static const char *const modes[] = { "ordinary", "short" };
	int first, end, i, mode;
	const char was = get_short_reads();
	unsigned long bad = 0;
	double seconds;
	size_t k;

	if (argc > 2 && !strcmp(argv[1], "-w")) {
		wrong_kind = argv[2];
		if (strcmp(wrong_kind, "byte") && strcmp(wrong_kind, "size") &&
		    strcmp(wrong_kind, "early"))
			argc = 0;
		argv += 2;
		argc -= 2;
	}
	seconds = argc > 1 ? atof(argv[1]) : 0;
	if (argc < 3 || seconds <= 0) {
		fprintf(stderr, "usage: read_races [-w byte|size|early] SECONDS DIRECTORY..."
				" [-- RACE...]\n");
		return 2;
	}
	first = 2;
	for (end = first; end < argc && strcmp(argv[end], "--"); end++)
		;
	for (i = end + 1; i < argc; i++)
		race_named(argv[i]);
	make_base();
	test_judge();
	for (mode = 0; mode < 2; mode++) {
		if (was)
			set_short_reads('0' + mode);
		else if (mode)
			break;
		for (i = first; i < end; i++) {
			struct statfs st;
			const char *fs_name;
			char path[256];
			enum fs fs;

			if (statfs(argv[i], &st))
				die(argv[i]);
			fs = st.f_type == TMPFS_MAGIC ? TMPFS : EXT4;
			if (fs == EXT4 && st.f_type != EXT4_SUPER_MAGIC) {
				fprintf(stderr, "read_races: %s: no ext4, no tmpfs\n", argv[i]);
				return 2;
			}
			fs_name = fs == EXT4 ? "ext4" : "tmpfs";
			snprintf(path, sizeof(path), "%s/read_races", argv[i]);
			for (k = 0; k < ARRAY_SIZE(races); k++) {
				bool asked = end + 1 >= argc && !races[k].huge;
				int a;

				for (a = end + 1; a < argc; a++)
					asked |= !strcmp(argv[a], races[k].name);
				if (!asked || !(races[k].fs & fs))
					continue;
				if (!mode)
					print_table(&races[k], fs_name, fs);
				bad += run_race(&races[k], fs_name, fs, path, modes[mode], seconds);
			}
		}
	}
	if (was)
		set_short_reads(was);
	return bad ? 1 : 0;
}
