// SPDX-License-Identifier: GPL-2.0-only
/*
 * What KCSAN has to report and the lab has to fail for: a page's count that is
 * changed by the accessors on one CPU and by plain stores on another. Loading
 * the module does so for a second.
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
		/* Never the value that is there, and never near 0. */
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
	/* The page stays with the module: nobody knows its count any more. */
	return IS_ERR(accessors) || IS_ERR(stores) ? -ENOMEM : 0;
}
module_init(racy_count_init);

MODULE_DESCRIPTION("A race about a page's count");
MODULE_LICENSE("GPL");
