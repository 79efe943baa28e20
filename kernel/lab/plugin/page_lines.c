// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU's emulator: counts what functions of the guest's kernel do
 * from their first instruction until they are back in their caller: instructions,
 * and cache lines that they read or write, each line once for each call.
 *
 *   -plugin page_lines.so,out=FILE,memory=BYTES,first=ADDRESS,last=ADDRESS,
 *           mark=ADDRESS,caller=FIRST-LAST,enter=ADDRESS[,enter=ADDRESS...]
 *
 * `first` and `last` are those of the guest's array of struct pages. Lines in it
 * are counted by themselves. A line is one of physical memory, as in most caches.
 *
 * Whenever the guest executes the function at `mark`, FILE gets a line
 *
 *   CALLS INSTRUCTIONS LINES-OF-STRUCT-PAGES OTHER-LINES
 *
 * for each `enter`, and a line "mark"; and the counts begin at 0 again.
 *
 * One CPU only: there are no locks. Debian does not package the header of the
 * plugins' interface, so what is used of it is declared here (version 1).
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
enum { NO_REGS = 0, READS_AND_WRITES = 3 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
						 size_t index);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
		void (*callback)(uint64_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
		void (*callback)(unsigned int cpu, void *data), int flags, void *data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
		void (*callback)(unsigned int cpu, uint32_t info, uint64_t address,
				 void *data),
		int flags, int rw, void *data);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(uint32_t info, uint64_t address);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *address);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *address);
void qemu_plugin_register_atexit_cb(uint64_t id,
		void (*callback)(uint64_t id, void *data), void *data);

EXPORT int qemu_plugin_version = 1;

enum { LINE = 64, FUNCTIONS = 8 };

struct function {
	uint64_t address;
	uint64_t calls, instructions, page_lines, other_lines;
};

static struct function functions[FUNCTIONS];
static int nr_functions;
/* The function that is being executed, and the number of its call. */
static struct function *now;
static uint32_t call;
/* For each line of memory the last call that touched it. */
static uint32_t *touched_by;
static uint64_t memory, first, last, mark, caller_first, caller_last;
static FILE *out;

/* The kernel's part of the address space. */
static bool is_kernel(uint64_t address)
{
	return address >> 63;
}

static void touched(unsigned int cpu, uint32_t info, uint64_t address, void *data)
{
	struct qemu_plugin_hwaddr *at;
	uint64_t line;

	(void)cpu, (void)data;
	if (!now)
		return;
	at = qemu_plugin_get_hwaddr(info, address);
	if (!at || qemu_plugin_hwaddr_is_io(at))
		return;
	line = qemu_plugin_hwaddr_phys_addr(at) / LINE;
	if (line >= memory / LINE || touched_by[line] == call)
		return;
	touched_by[line] = call;
	if (address >= first && address < last)
		now->page_lines++;
	else
		now->other_lines++;
}

static void executed(unsigned int cpu, void *data)
{
	(void)cpu;
	if (now)
		now->instructions += (uintptr_t)data;
}

static void entered(unsigned int cpu, void *data)
{
	(void)cpu;
	if (now)
		return;
	now = data;
	now->calls++;
	call++;
}

static void left(unsigned int cpu, void *data)
{
	(void)cpu, (void)data;
	now = NULL;
}

static void marked(unsigned int cpu, void *data)
{
	(void)cpu, (void)data;
	for (int i = 0; i < nr_functions; i++) {
		struct function *f = &functions[i];

		fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", f->calls,
			f->instructions, f->page_lines, f->other_lines);
		f->calls = f->instructions = f->page_lines = f->other_lines = 0;
	}
	fprintf(out, "mark\n");
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	uint64_t at = qemu_plugin_tb_vaddr(tb);
	size_t nr = qemu_plugin_tb_n_insns(tb);

	(void)id;
	if (!is_kernel(at))
		return;
	if (at >= caller_first && at < caller_last)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, left, NO_REGS, NULL);
	if (at == mark)
		qemu_plugin_register_vcpu_tb_exec_cb(tb, marked, NO_REGS, NULL);
	for (int i = 0; i < nr_functions; i++) {
		if (at == functions[i].address)
			qemu_plugin_register_vcpu_tb_exec_cb(tb, entered, NO_REGS,
							     &functions[i]);
	}
	/* After the above, so that the first block of a function counts as its own. */
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, NO_REGS, (void *)(uintptr_t)nr);
	for (size_t i = 0; i < nr; i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), touched,
						 NO_REGS, READS_AND_WRITES, NULL);
}

static void done(uint64_t id, void *data)
{
	(void)id, (void)data;
	if (fclose(out))
		perror("page_lines");
}

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			return 1;
		*value++ = 0;
		if (!strcmp(argv[i], "out"))
			out = fopen(value, "w");
		else if (!strcmp(argv[i], "memory"))
			memory = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "first"))
			first = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "last"))
			last = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "mark"))
			mark = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "caller")) {
			caller_first = strtoull(value, &value, 0);
			caller_last = *value == '-' ? strtoull(value + 1, NULL, 0) : 0;
		} else if (!strcmp(argv[i], "enter") && nr_functions < FUNCTIONS)
			functions[nr_functions++].address = strtoull(value, NULL, 0);
		else
			return 1;
	}
	if (!out || !memory || !first || last <= first || !mark || !nr_functions ||
	    caller_last <= caller_first)
		return 1;
	touched_by = calloc(memory / LINE, sizeof(*touched_by));
	if (!touched_by)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, done, NULL);
	return 0;
}
