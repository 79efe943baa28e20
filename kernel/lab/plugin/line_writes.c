// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU's emulator: counts the writes to each struct page, and prints
 * those to the one that is written to most, by their offset in it.
 *
 *   -plugin line_writes.so,out=FILE,first=ADDRESS,last=ADDRESS
 *
 * FILE gets a line "OFFSET WRITES" for each offset. The addresses are those of
 * the guest's array of struct pages, of 64 bytes each. One CPU only: there are no
 * locks.
 *
 * Debian does not package the header of the plugins' interface, so what is used
 * of it is declared here (version 1).
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
enum { NO_REGS = 0, WRITES = 2 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
						 size_t index);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
		void (*callback)(uint64_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn,
		void (*callback)(unsigned int cpu, uint32_t info, uint64_t address,
				 void *data),
		int flags, int rw, void *data);
bool qemu_plugin_mem_is_store(uint32_t info);
void qemu_plugin_register_atexit_cb(uint64_t id,
		void (*callback)(uint64_t id, void *data), void *data);

EXPORT int qemu_plugin_version = 1;

enum { LINE = 64 };

/* For each struct page its writes, by offset. */
static uint32_t (*writes)[LINE];
static uint64_t first, last;
static const char *file;

static void written(unsigned int cpu, uint32_t info, uint64_t address, void *data)
{
	(void)cpu, (void)data;
	/* The emulator also calls this for reads, whatever was asked for. */
	if (qemu_plugin_mem_is_store(info) && address >= first && address < last)
		writes[(address - first) / LINE][address % LINE]++;
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), written,
						 NO_REGS, WRITES, NULL);
}

static void done(uint64_t id, void *data)
{
	uint64_t most = 0, at = 0;
	FILE *out = fopen(file, "w");

	(void)id, (void)data;
	for (uint64_t i = 0; i < (last - first) / LINE; i++) {
		uint64_t sum = 0;

		for (int j = 0; j < LINE; j++)
			sum += writes[i][j];
		if (sum > most) {
			most = sum;
			at = i;
		}
	}
	for (int j = 0; out && j < LINE; j++) {
		if (writes[at][j])
			fprintf(out, "%d %" PRIu32 "\n", j, writes[at][j]);
	}
	if (!out || fclose(out))
		perror(file);
}

EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			continue;
		*value++ = 0;
		if (!strcmp(argv[i], "out"))
			file = strdup(value);
		else if (!strcmp(argv[i], "first"))
			first = strtoull(value, NULL, 0);
		else if (!strcmp(argv[i], "last"))
			last = strtoull(value, NULL, 0);
	}
	if (!file || !first || last <= first)
		return 1;
	writes = calloc((last - first) / LINE, sizeof(*writes));
	if (!writes)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, done, NULL);
	return 0;
}
