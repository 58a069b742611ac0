// SPDX-License-Identifier: GPL-2.0
/*
 * The state of ib_uverbs for a process that has a device open, as far as mapping
 * memory needs it. It is for tests, because ib_uverbs itself creates this state
 * only in system calls.
 */

#ifdef CONFIG_INFINIBAND_VRNIC_KUNIT_TEST
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/srcu.h>
#include <../drivers/infiniband/core/core_priv.h>
#include <../drivers/infiniband/core/uverbs.h>

struct test_uverbs {
	struct ib_uverbs_device device;
	struct ib_uverbs_file file;
};

/* Frees the state of rdma_user_mmap_io() for a mapping. Pages have no such state. */
static void test_vma_close(struct vm_area_struct *vma)
{
	struct rdma_umap_priv *priv = vma->vm_private_data;

	if (!priv)
		return;
	list_del(&priv->list);
	rdma_user_mmap_entry_put(priv->entry);
	kfree(priv);
}

static const struct vm_operations_struct test_vm_ops = {
	.close = test_vma_close,
};

/* All verbs hold this. It prevents disassociation of the device. */
__rust_helper int rust_helper_test_uverbs_lock(struct file *file)
{
	struct ib_uverbs_file *ufile = file->private_data;

	return srcu_read_lock(&ufile->device->disassociate_srcu);
}

__rust_helper void rust_helper_test_uverbs_unlock(struct file *file, int index)
{
	struct ib_uverbs_file *ufile = file->private_data;

	srcu_read_unlock(&ufile->device->disassociate_srcu, index);
}

static int test_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct ib_uverbs_file *ufile = file->private_data;
	struct ib_ucontext *context = ufile->ucontext;
	int index, err;

	index = rust_helper_test_uverbs_lock(file);
	vma->vm_ops = &test_vm_ops;
	err = context->device->ops.mmap(context, vma);
	rust_helper_test_uverbs_unlock(file, index);
	return err;
}

static int test_release(struct inode *inode, struct file *file)
{
	struct ib_uverbs_file *ufile = file->private_data;
	struct test_uverbs *uverbs = container_of(ufile, struct test_uverbs, file);

	cleanup_srcu_struct(&uverbs->device.disassociate_srcu);
	kfree(uverbs);
	return 0;
}

static const struct file_operations test_fops = {
	.owner = THIS_MODULE,
	.mmap = test_mmap,
	.release = test_release,
};

/*
 * Returns the file for a process that has @context open, or NULL. @context is
 * about to be constructed. It outlives mappings of device memory, but not the
 * file.
 */
__rust_helper struct file *
rust_helper_test_uverbs_open(struct ib_ucontext *context)
{
	struct test_uverbs *uverbs = kzalloc_obj(*uverbs);
	struct file *file;

	if (!uverbs)
		return NULL;
	if (init_srcu_struct(&uverbs->device.disassociate_srcu))
		goto err_free;
	mutex_init(&uverbs->file.umap_lock);
	INIT_LIST_HEAD(&uverbs->file.umaps);
	uverbs->file.device = &uverbs->device;
	uverbs->file.ucontext = context;
	rcu_assign_pointer(uverbs->device.ib_dev, context->device);
	file = anon_inode_getfile("rdma-test", &test_fops, &uverbs->file, O_RDWR);
	if (IS_ERR(file))
		goto err_srcu;
	context->ufile = &uverbs->file;
	xa_init_flags(&context->mmap_xa, XA_FLAGS_ALLOC);
	return file;

err_srcu:
	cleanup_srcu_struct(&uverbs->device.disassociate_srcu);
err_free:
	kfree(uverbs);
	return NULL;
}

/* Adds an attribute with @len bytes at @addr of the calling process to a call. */
__rust_helper void
rust_helper_test_uverbs_set_attr(struct uverbs_attr_bundle *attrs, unsigned int id,
				 u64 addr, u16 len)
{
	unsigned int bkey = uapi_bkey_attr(uapi_key_attr(id));

	attrs->attrs[bkey].ptr_attr.data = addr;
	attrs->attrs[bkey].ptr_attr.len = len;
	__set_bit(bkey, attrs->attr_present);
}

/* Adds an attribute with the object of @uobject to a call. */
__rust_helper void
rust_helper_test_uverbs_set_object(struct uverbs_attr_bundle *attrs, unsigned int id,
				   struct ib_uobject *uobject)
{
	unsigned int bkey = uapi_bkey_attr(uapi_key_attr(id));

	attrs->attrs[bkey].obj_attr.uobject = uobject;
	__set_bit(bkey, attrs->attr_present);
}

/*
 * Returns the physical address that this process has mapped at @address, or 0 if
 * there is no mapping or it is not uncached.
 */
__rust_helper phys_addr_t rust_helper_test_uncached(unsigned long address)
{
	struct follow_pfnmap_args args = { .address = address };
	phys_addr_t found = 0;

	mmap_read_lock(current->mm);
	args.vma = vma_lookup(current->mm, address);
	if (args.vma && !follow_pfnmap_start(&args)) {
		if (pgprot_val(args.pgprot) == pgprot_val(pgprot_noncached(args.pgprot)))
			found = PFN_PHYS(args.pfn);
		follow_pfnmap_end(&args);
	}
	mmap_read_unlock(current->mm);
	return found;
}

/* Returns the number of pages of this process that are pinned for devices. */
__rust_helper u64 rust_helper_test_pinned(void)
{
	return atomic64_read(&current->mm->pinned_vm);
}
#endif
