// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the kernel's own objects call and a program has not got. Each stub is
 * in the list at the end, which the lab prints, and which it compares with the
 * symbols of this file. A symbol that is neither here nor in the C library
 * ends the program when it is used.
 */
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>
#include <linux/mm.h>
#include <linux/vmstat.h>
#include "cores.h"

/*
 * The nodes of the index: a list, used by one worker at a time. A mapping of a
 * few thousand pages has fewer than a hundred.
 */
#define NODES 1024

static struct pool {
	struct xa_node *free;
	struct rcu_head *unlinked;
} *pool;

/* Declared in the kernel's lib/radix-tree.h. */
extern struct kmem_cache *radix_tree_node_cachep;
extern void radix_tree_node_rcu_free(struct rcu_head *head);

struct kmem_cache *radix_tree_node_cachep;

static void clear_node(struct xa_node *node)
{
	memset(node, 0, sizeof(*node));
	INIT_LIST_HEAD(&node->private_list);
}

static void node_free(struct xa_node *node)
{
	clear_node(node);
	node->parent = pool->free;
	pool->free = node;
}

void cores_stubs_init(struct cores *c)
{
	/* The kernel's slab aligns them to cache lines as well. */
	unsigned long size = ALIGN(sizeof(struct xa_node), 64);
	char *nodes = cores_alloc(NODES * size, 64);
	int i;

	pool = cores_alloc(sizeof(*pool), CORES_LINE);
	for (i = 0; i < NODES; i++)
		node_free((struct xa_node *)(nodes + i * size));
}

void *kmem_cache_alloc_lru_noprof(struct kmem_cache *cache, struct list_lru *lru,
				  gfp_t gfp)
{
	struct xa_node *node = pool->free;

	if (!node)
		cores_wrong("nodes of the index in use", NODES, NODES - 1);
	pool->free = node->parent;
	node->parent = NULL;
	return node;
}

/* Only its address is used: see call_rcu(). */
void radix_tree_node_rcu_free(struct rcu_head *head)
{
	node_free(container_of(head, struct xa_node, rcu_head));
}

void call_rcu(struct rcu_head *head, rcu_callback_t func)
{
	if (func != radix_tree_node_rcu_free)
		cores_wrong("call_rcu() of something else than a node", 1, 0);
	head->next = pool->unlinked;
	pool->unlinked = head;
}

/*
 * A grace period, since RCU's readers are code without preemption: each worker
 * has been between two batches of lookups.
 */
void cores_synchronize(struct cores *c, int me)
{
	struct rcu_head *head;
	int i;

	smp_mb();
	for (i = 0; i < c->workers; i++) {
		struct cores_worker *w = &c->worker[i];
		unsigned long before = READ_ONCE(w->quiescent);

		while (i != me && !smp_load_acquire(&w->gone) &&
		       smp_load_acquire(&w->quiescent) == before)
			cpu_relax();
	}
	while ((head = pool->unlinked)) {
		pool->unlinked = head->next;
		radix_tree_node_rcu_free(head);
	}
}

/* The lock of an index, which only one worker takes here. */
void __lockfunc _raw_spin_lock(raw_spinlock_t *lock)
{
	while (cmpxchg_acquire(&lock->raw_lock.val.counter, 0, 1) != 0)
		cpu_relax();
}

/*
 * What the kernel keeps for each CPU, a worker has here: a copy of the section
 * with all such variables, and how far away it is in GS. The lab gives the
 * section this name, for which the linker makes the two symbols.
 */
extern char __start_percpu[], __stop_percpu[];

DEFINE_PER_CPU_ALIGNED(struct pcpu_hot, pcpu_hot);
/* The kernel's linker script does this. */
asm(".globl const_pcpu_hot\n.set const_pcpu_hot, pcpu_hot");
DEFINE_PER_CPU_READ_MOSTLY(unsigned long, this_cpu_off);
DEFINE_PER_CPU(struct vm_event_state, vm_event_states);

unsigned long cores_percpu(void)
{
	unsigned long bytes = __stop_percpu - __start_percpu;
	char *copy = cores_alloc(bytes, CORES_LINE);
	unsigned long offset = copy - __start_percpu;

	memcpy(copy, __start_percpu, bytes);
	*SHIFT_PERCPU_PTR(&this_cpu_off, offset) = offset;
	SHIFT_PERCPU_PTR(&pcpu_hot, offset)->current_task =
		cores_alloc(sizeof(struct task_struct), CORES_LINE);
	return offset;
}

/* Nobody needs the CPU of a worker. */
int __cond_resched(void)
{
	return 0;
}

/* Nobody here puts the last reference, the page cache's. */
void __folio_put(struct folio *folio)
{
	cores_wrong("folios destroyed that are in the page cache", 1, 0);
}

/*
 * No page here is the zero page. Pages are told apart by their addresses, but
 * for a case whose pages have contents.
 */
unsigned long zero_pfn;
unsigned long vmemmap_base;
unsigned long page_offset_base;

void mod_node_page_state(struct pglist_data *node, enum node_stat_item item, long delta)
{
}

const struct cores_stub cores_stubs[] = {
	{ "radix_tree_node_cachep", "the slab cache of the index's nodes: no cache" },
	{ "kmem_cache_alloc_lru_noprof", "a list of nodes; without memcg" },
	{ "radix_tree_node_rcu_free", "back to that list" },
	{ "call_rcu", "frees when every worker was between two batches of lookups" },
	{ "_raw_spin_lock", "the index's lock: compare-and-swap, no queue; interrupts stay on" },
	{ "zero_pfn", "a frame that no page here is" },
	{ "vmemmap_base", "the array of struct pages begins at 0; in short reads at the pages" },
	{ "page_offset_base", "where the pages' contents are" },
	{ "pcpu_hot", "for each worker: a task of zeroes" },
	{ "const_pcpu_hot", "the same" },
	{ "this_cpu_off", "for each worker: where its copy of all such variables is" },
	{ "vm_event_states", "for each worker: the events it has counted" },
	{ "__cond_resched", "does nothing: nobody else needs the CPU" },
	{ "mod_node_page_state", "does nothing: no statistics of pins" },
	{ "__folio_put", "is an error: nobody puts the last reference" },
	{ }
};

const struct cores_feature cores_features[] = {
	{ X86_FEATURE_SMAP, "smap", "not done: programs may not execute STAC and CLAC",
	  CORES_NEVER },
	/* The kernel sets it for all CPUs of AMD and Intel that have SSE2. */
	{ X86_FEATURE_LFENCE_RDTSC, "lfence_rdtsc", "as the kernel does", CORES_ALWAYS },
	{ X86_FEATURE_FSRM, "fsrm", "as the kernel does", CORES_BY_CPUID },
	{ X86_FEATURE_ERMS, "erms", "as the kernel does", CORES_BY_CPUID },
	{ }
};
