// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * An exporter of dma-bufs that moves them and takes them away when it is told
 * to. Each open file of /dev/vrnic-exporter owns a dma-buf, which has two places
 * in memory. When it moves from one to the other, the place that it leaves is
 * filled with a pattern; a device that still writes there is found out.
 */

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#define MAX_PAGES 4096
#define LEFT 0xdb

/* Creates the dma-buf of as many bytes as the argument says; returns a descriptor. */
#define EXPORTER_EXPORT _IO('V', 1)
/* Moves it. EBUSY if it is pinned or an importer keeps its mapping, ENODEV if it is gone. */
#define EXPORTER_MOVE _IO('V', 2)
/* Takes it away for good. EBUSY as above. */
#define EXPORTER_REVOKE _IO('V', 3)
/* Returns the number of pages that were written to after the dma-buf had left them. */
#define EXPORTER_STALE _IO('V', 4)

struct buffer {
	unsigned int count;
	/* Both places. All of this is protected by the lock of the dma-buf. */
	struct page **places[2];
	unsigned int here;
	unsigned int mapped;
	unsigned int pinned;
	unsigned int stale;
	bool revoked;
};

struct owner {
	/* Protects the pointer. */
	struct mutex lock;
	struct dma_buf *dmabuf;
};

static struct sg_table *buffer_map(struct dma_buf_attachment *attach, enum dma_data_direction dir)
{
	struct buffer *buffer = attach->dmabuf->priv;
	struct sg_table *table;
	int ret;

	if (buffer->revoked)
		return ERR_PTR(-ENODEV);
	table = kzalloc_obj(*table);
	if (!table)
		return ERR_PTR(-ENOMEM);
	ret = sg_alloc_table_from_pages(table, buffer->places[buffer->here], buffer->count, 0,
					(unsigned long)buffer->count << PAGE_SHIFT, GFP_KERNEL);
	if (ret)
		goto err_alloc;
	ret = dma_map_sgtable(attach->dev, table, dir, DMA_ATTR_SKIP_CPU_SYNC);
	if (ret)
		goto err_map;
	buffer->mapped++;
	return table;

err_map:
	sg_free_table(table);
err_alloc:
	kfree(table);
	return ERR_PTR(ret);
}

static void buffer_unmap(struct dma_buf_attachment *attach, struct sg_table *table,
			 enum dma_data_direction dir)
{
	struct buffer *buffer = attach->dmabuf->priv;

	buffer->mapped--;
	dma_unmap_sgtable(attach->dev, table, dir, DMA_ATTR_SKIP_CPU_SYNC);
	sg_free_table(table);
	kfree(table);
}

static int buffer_pin(struct dma_buf_attachment *attach)
{
	struct buffer *buffer = attach->dmabuf->priv;

	buffer->pinned++;
	return 0;
}

static void buffer_unpin(struct dma_buf_attachment *attach)
{
	struct buffer *buffer = attach->dmabuf->priv;

	buffer->pinned--;
}

static vm_fault_t buffer_fault(struct vm_fault *vmf)
{
	struct dma_buf *dmabuf = vmf->vma->vm_private_data;
	struct buffer *buffer = dmabuf->priv;
	vm_fault_t ret = VM_FAULT_SIGBUS;

	dma_resv_lock(dmabuf->resv, NULL);
	if (!buffer->revoked && vmf->pgoff < buffer->count) {
		struct page *page = buffer->places[buffer->here][vmf->pgoff];

		ret = vmf_insert_pfn(vmf->vma, vmf->address, page_to_pfn(page));
	}
	dma_resv_unlock(dmabuf->resv);
	return ret;
}

static const struct vm_operations_struct buffer_vm_ops = {
	.fault = buffer_fault,
};

static int buffer_mmap(struct dma_buf *dmabuf, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	vma->vm_ops = &buffer_vm_ops;
	vma->vm_private_data = dmabuf;
	vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	return 0;
}

static void buffer_free(struct buffer *buffer)
{
	unsigned int place, i;

	for (place = 0; place < 2; place++) {
		for (i = 0; buffer->places[place] && i < buffer->count; i++)
			if (buffer->places[place][i])
				__free_page(buffer->places[place][i]);
		kvfree(buffer->places[place]);
	}
	kfree(buffer);
}

static void buffer_release(struct dma_buf *dmabuf)
{
	buffer_free(dmabuf->priv);
}

static const struct dma_buf_ops buffer_ops = {
	.map_dma_buf = buffer_map,
	.unmap_dma_buf = buffer_unmap,
	.pin = buffer_pin,
	.unpin = buffer_unpin,
	.mmap = buffer_mmap,
	.release = buffer_release,
};

static void page_leave(struct page *page)
{
	void *bytes = kmap_local_page(page);

	memset(bytes, LEFT, PAGE_SIZE);
	kunmap_local(bytes);
}

static struct buffer *buffer_alloc(unsigned int count)
{
	struct buffer *buffer = kzalloc_obj(*buffer);
	unsigned int place, i;

	if (!buffer)
		return NULL;
	buffer->count = count;
	for (place = 0; place < 2; place++) {
		buffer->places[place] = kvcalloc(count, sizeof(struct page *), GFP_KERNEL);
		for (i = 0; i < count; i++) {
			if (buffer->places[place])
				buffer->places[place][i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
			if (!buffer->places[place] || !buffer->places[place][i])
				goto err;
			if (place == 1)
				page_leave(buffer->places[place][i]);
		}
	}
	return buffer;

err:
	buffer_free(buffer);
	return NULL;
}

/* Counts, and forgets, what was written to a place that the dma-buf has left. */
static void buffer_check(struct buffer *buffer, unsigned int place)
{
	unsigned int i;

	for (i = 0; i < buffer->count; i++) {
		struct page *page = buffer->places[place][i];
		void *bytes = kmap_local_page(page);
		bool touched = memchr_inv(bytes, LEFT, PAGE_SIZE);

		kunmap_local(bytes);
		if (touched) {
			buffer->stale++;
			page_leave(page);
		}
	}
}

/* Makes all importers and processes let go of the memory. */
static int buffer_clear(struct dma_buf *dmabuf)
{
	struct buffer *buffer = dmabuf->priv;

	if (buffer->revoked)
		return -ENODEV;
	if (buffer->pinned)
		return -EBUSY;
	/* Other exporters do this to reclaim memory, so have lockdep look at it as such. */
	fs_reclaim_acquire(GFP_KERNEL);
	dma_buf_invalidate_mappings(dmabuf);
	fs_reclaim_release(GFP_KERNEL);
	dma_resv_wait_timeout(dmabuf->resv, DMA_RESV_USAGE_BOOKKEEP, false, MAX_SCHEDULE_TIMEOUT);
	if (buffer->mapped)
		return -EBUSY;
	unmap_mapping_range(dmabuf->file->f_mapping, 0, 0, 1);
	return 0;
}

static int buffer_leave(struct dma_buf *dmabuf, bool for_good)
{
	struct buffer *buffer = dmabuf->priv;
	struct page **old = buffer->places[buffer->here];
	struct page **new = buffer->places[!buffer->here];
	unsigned int i;
	int ret = buffer_clear(dmabuf);

	if (ret)
		return ret;
	buffer_check(buffer, !buffer->here);
	for (i = 0; i < buffer->count; i++) {
		if (!for_good)
			copy_highpage(new[i], old[i]);
		page_leave(old[i]);
	}
	buffer->here = !buffer->here;
	buffer->revoked = for_good;
	return 0;
}

static unsigned int buffer_stale(struct buffer *buffer)
{
	buffer_check(buffer, !buffer->here);
	if (buffer->revoked)
		buffer_check(buffer, buffer->here);
	return buffer->stale;
}

static int owner_export(struct owner *owner, unsigned long bytes)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct buffer *buffer;
	int fd;

	if (owner->dmabuf)
		return -EBUSY;
	if (!bytes || !PAGE_ALIGNED(bytes) || bytes >> PAGE_SHIFT > MAX_PAGES)
		return -EINVAL;
	buffer = buffer_alloc(bytes >> PAGE_SHIFT);
	if (!buffer)
		return -ENOMEM;
	info.ops = &buffer_ops;
	info.size = bytes;
	info.flags = O_RDWR;
	info.priv = buffer;
	owner->dmabuf = dma_buf_export(&info);
	if (IS_ERR(owner->dmabuf)) {
		int ret = PTR_ERR(owner->dmabuf);

		owner->dmabuf = NULL;
		buffer_free(buffer);
		return ret;
	}
	/* The descriptor, which the process may close at once, has the first reference. */
	get_dma_buf(owner->dmabuf);
	fd = dma_buf_fd(owner->dmabuf, O_CLOEXEC);
	if (fd < 0) {
		dma_buf_put(owner->dmabuf);
		dma_buf_put(owner->dmabuf);
		owner->dmabuf = NULL;
	}
	return fd;
}

static long owner_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct owner *owner = file->private_data;
	long ret;

	mutex_lock(&owner->lock);
	if (cmd == EXPORTER_EXPORT) {
		ret = owner_export(owner, arg);
	} else if (!owner->dmabuf) {
		ret = -EINVAL;
	} else {
		dma_resv_lock(owner->dmabuf->resv, NULL);
		switch (cmd) {
		case EXPORTER_MOVE:
			ret = buffer_leave(owner->dmabuf, false);
			break;
		case EXPORTER_REVOKE:
			ret = buffer_leave(owner->dmabuf, true);
			break;
		case EXPORTER_STALE:
			ret = buffer_stale(owner->dmabuf->priv);
			break;
		default:
			ret = -ENOTTY;
		}
		dma_resv_unlock(owner->dmabuf->resv);
	}
	mutex_unlock(&owner->lock);
	return ret;
}

static int owner_open(struct inode *inode, struct file *file)
{
	struct owner *owner = kzalloc_obj(*owner);

	if (!owner)
		return -ENOMEM;
	mutex_init(&owner->lock);
	file->private_data = owner;
	return 0;
}

static int owner_release(struct inode *inode, struct file *file)
{
	struct owner *owner = file->private_data;

	if (owner->dmabuf)
		dma_buf_put(owner->dmabuf);
	mutex_destroy(&owner->lock);
	kfree(owner);
	return 0;
}

static const struct file_operations owner_fops = {
	.owner = THIS_MODULE,
	.open = owner_open,
	.release = owner_release,
	.unlocked_ioctl = owner_ioctl,
};

static struct miscdevice exporter = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "vrnic-exporter",
	.fops = &owner_fops,
	.mode = 0600,
};
module_misc_device(exporter);

MODULE_IMPORT_NS("DMA_BUF");
MODULE_DESCRIPTION("Test: an exporter of dma-bufs that moves them and takes them away");
MODULE_LICENSE("Dual BSD/GPL");
