// SPDX-License-Identifier: GPL-2.0

#include <linux/mmu_notifier.h>
#include <linux/pci-p2pdma.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>

/* Returns the user context of a verb call, or NULL if there is none. */
__rust_helper struct ib_ucontext *
rust_helper_ib_udata_ucontext(struct ib_udata *udata)
{
	return udata ? container_of(udata, struct uverbs_attr_bundle,
				    driver_udata)->context : NULL;
}

__rust_helper struct uverbs_attr_bundle *
rust_helper_rdma_udata_to_uverbs_attr_bundle(struct ib_udata *udata)
{
	return rdma_udata_to_uverbs_attr_bundle(udata);
}

__rust_helper bool
rust_helper_uverbs_attr_is_valid(const struct uverbs_attr_bundle *attrs_bundle,
				 unsigned int idx)
{
	return uverbs_attr_is_valid(attrs_bundle, idx);
}

__rust_helper void *
rust_helper_uverbs_attr_get_obj(const struct uverbs_attr_bundle *attrs_bundle, u16 idx)
{
	return uverbs_attr_get_obj(attrs_bundle, idx);
}

__rust_helper int
rust_helper__uverbs_copy_from_or_zero(void *to,
				      const struct uverbs_attr_bundle *attrs_bundle,
				      size_t idx, size_t size)
{
	return _uverbs_copy_from_or_zero(to, attrs_bundle, idx, size);
}

__rust_helper size_t rust_helper_ib_umem_num_dma_blocks(struct ib_umem *umem,
							unsigned long pgsz)
{
	return ib_umem_num_dma_blocks(umem, pgsz);
}

/* Returns the DMA address of a present page, and maps it for DMA if necessary. */
__rust_helper dma_addr_t rust_helper_ib_umem_odp_map_page(struct ib_umem_odp *umem_odp,
							  size_t index)
{
	struct pci_p2pdma_map_state state = {};

	return hmm_dma_map_pfn(umem_odp->umem.ibdev->dma_device, &umem_odp->map, index,
			       &state);
}

__rust_helper bool
rust_helper_mmu_notifier_range_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

__rust_helper void
rust_helper_mmu_interval_set_seq(struct mmu_interval_notifier *notifier,
				 unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
}

__rust_helper void rust_helper_rdma_umem_block_iter_start(struct ib_block_iter *biter,
							  struct ib_umem *umem,
							  unsigned long pgsz)
{
	__rdma_umem_block_iter_start(biter, umem, pgsz);
}

__rust_helper bool rust_helper_rdma_umem_block_iter_next(struct ib_block_iter *biter)
{
	return __rdma_umem_block_iter_next(biter);
}

__rust_helper dma_addr_t
rust_helper_rdma_block_iter_dma_address(struct ib_block_iter *biter)
{
	return rdma_block_iter_dma_address(biter);
}

__rust_helper u64
rust_helper_rdma_user_mmap_get_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}
