// SPDX-License-Identifier: GPL-2.0

#include <linux/sched/mm.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>

__rust_helper int rust_helper_virtio_find_vqs(struct virtio_device *vdev,
					      unsigned int nvqs,
					      struct virtqueue *vqs[],
					      struct virtqueue_info vqs_info[],
					      struct irq_affinity *desc)
{
	return virtio_find_vqs(vdev, nvqs, vqs, vqs_info, desc);
}

__rust_helper int rust_helper_virtqueue_set_affinity(struct virtqueue *vq,
						     const struct cpumask *cpu_mask)
{
	return virtqueue_set_affinity(vq, cpu_mask);
}

__rust_helper const struct cpumask *rust_helper_cpumask_of(unsigned int cpu)
{
	return cpumask_of(cpu);
}

__rust_helper int rust_helper_dev_to_node(struct device *dev)
{
	return dev_to_node(dev);
}

__rust_helper void rust_helper_virtio_del_vqs(struct virtio_device *vdev)
{
	vdev->config->del_vqs(vdev);
}

__rust_helper void rust_helper_virtio_synchronize_cbs(struct virtio_device *vdev)
{
	virtio_synchronize_cbs(vdev);
}

__rust_helper void rust_helper_virtio_device_ready(struct virtio_device *vdev)
{
	virtio_device_ready(vdev);
}

__rust_helper u8 rust_helper_virtio_get_status(struct virtio_device *vdev)
{
	return vdev->config->get_status(vdev);
}

/* Returns the negotiated features; drivers know none beyond the first 64. */
__rust_helper u64 rust_helper_virtio_features(const struct virtio_device *vdev)
{
	return vdev->features;
}

__rust_helper void rust_helper_virtio_cread_bytes(struct virtio_device *vdev,
						  unsigned int offset, void *buf,
						  size_t len)
{
	virtio_cread_bytes(vdev, offset, buf, len);
}

__rust_helper int rust_helper_virtio_finalize_features(struct virtio_device *vdev)
{
	return vdev->config->finalize_features(vdev);
}

__rust_helper int rust_helper_virtio_get_structure(struct virtio_device *vdev,
						   struct virtio_structure *structure,
						   u8 type)
{
	return virtio_get_structure(vdev, structure, type);
}

#ifdef CONFIG_INFINIBAND_VRNIC_KUNIT_TEST
/* Tells lockdep that this task frees memory that others wait for. */
__rust_helper void rust_helper_test_reclaim_begin(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

__rust_helper void rust_helper_test_reclaim_end(void)
{
	fs_reclaim_release(GFP_KERNEL);
}
#endif
