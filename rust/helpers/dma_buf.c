// SPDX-License-Identifier: GPL-2.0
/*
 * A dma-buf for tests that moves, and goes away, when it is told to. It has no
 * memory, only DMA addresses, which nobody uses.
 */

#ifdef CONFIG_INFINIBAND_VRNIC_KUNIT_TEST
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

/* Pages that are adjacent, and distance of such pages from the next ones. */
#define TEST_DMA_BUF_RUN 3
#define TEST_DMA_BUF_STRIDE 16

struct test_dma_buf {
	/* Address of the first page; 0 if the dma-buf is gone. */
	dma_addr_t base;
	/* Number of mappings. */
	int mapped;
};

static struct sg_table *test_dma_buf_map(struct dma_buf_attachment *attach,
					 enum dma_data_direction dir)
{
	struct test_dma_buf *buf = attach->dmabuf->priv;
	size_t pages = attach->dmabuf->size / PAGE_SIZE;
	struct scatterlist *sg;
	struct sg_table *table;
	int i;

	if (!buf->base)
		return ERR_PTR(-ENODEV);
	table = kzalloc_obj(*table);
	if (!table)
		return ERR_PTR(-ENOMEM);
	if (sg_alloc_table(table, DIV_ROUND_UP(pages, TEST_DMA_BUF_RUN), GFP_KERNEL)) {
		kfree(table);
		return ERR_PTR(-ENOMEM);
	}
	for_each_sgtable_dma_sg(table, sg, i) {
		size_t run = min_t(size_t, pages - i * TEST_DMA_BUF_RUN, TEST_DMA_BUF_RUN);

		sg_dma_address(sg) = buf->base + i * TEST_DMA_BUF_STRIDE * PAGE_SIZE;
		sg_dma_len(sg) = run * PAGE_SIZE;
	}
	buf->mapped++;
	return table;
}

static void test_dma_buf_unmap(struct dma_buf_attachment *attach, struct sg_table *table,
			       enum dma_data_direction dir)
{
	struct test_dma_buf *buf = attach->dmabuf->priv;

	buf->mapped--;
	sg_free_table(table);
	kfree(table);
}

static void test_dma_buf_release(struct dma_buf *dmabuf)
{
	kfree(dmabuf->priv);
}

static const struct dma_buf_ops test_dma_buf_ops = {
	.map_dma_buf = test_dma_buf_map,
	.unmap_dma_buf = test_dma_buf_unmap,
	.release = test_dma_buf_release,
};

/* Returns a dma-buf of @size bytes, or an error pointer. */
__rust_helper struct dma_buf *rust_helper_test_dma_buf_new(size_t size, dma_addr_t base)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct test_dma_buf *buf = kzalloc_obj(*buf);
	struct dma_buf *dmabuf;

	if (!buf)
		return ERR_PTR(-ENOMEM);
	buf->base = base;
	info.ops = &test_dma_buf_ops;
	info.size = size;
	info.priv = buf;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf))
		kfree(buf);
	return dmabuf;
}

/*
 * Moves a dma-buf, or takes it away if @base is 0. Returns how many mappings
 * are left of where it was.
 */
__rust_helper int rust_helper_test_dma_buf_move(struct dma_buf *dmabuf, dma_addr_t base)
{
	struct test_dma_buf *buf = dmabuf->priv;
	int left;

	dma_resv_lock(dmabuf->resv, NULL);
	dma_buf_invalidate_mappings(dmabuf);
	left = buf->mapped;
	buf->base = base;
	dma_resv_unlock(dmabuf->resv);
	return left;
}

MODULE_IMPORT_NS("DMA_BUF");
#endif
