// SPDX-License-Identifier: GPL-2.0-only
/*
 * A race that KCSAN must report, and that must fail the lab's run: one thread
 * changes a page's count by the accessors, another by plain stores. Loading the
 * module makes it race for a second.
 */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>

static int by_accessors(void *page)
{
	while (!kthread_should_stop()) {
		page_ref_inc(page);
		page_ref_dec(page);
		cond_resched();
	}
	return 0;
}

static int by_stores(void *data)
{
	struct page *page = data;
	int count = 100;

	while (!kthread_should_stop()) {
		/* Alternates between two values, both far from 0. */
		count = 300 - count;
		page->_refcount.counter = count;
		barrier();
		cond_resched();
	}
	return 0;
}

static int __init racy_count_init(void)
{
	struct page *page = alloc_page(GFP_KERNEL);
	struct task_struct *accessors, *stores;

	if (!page)
		return -ENOMEM;
	accessors = kthread_run(by_accessors, page, "by_accessors");
	stores = kthread_run(by_stores, page, "by_stores");
	msleep(1000);
	if (!IS_ERR(accessors))
		kthread_stop(accessors);
	if (!IS_ERR(stores))
		kthread_stop(stores);
	/* The page is not freed: its count is wrong now. */
	return IS_ERR(accessors) || IS_ERR(stores) ? -ENOMEM : 0;
}
module_init(racy_count_init);

MODULE_DESCRIPTION("A race about a page's count");
MODULE_LICENSE("GPL");
