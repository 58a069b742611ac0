/* SPDX-License-Identifier: GPL-2.0 */
/*
 * In the kernel tree this is an operation of struct virtio_config_ops, which the
 * series adds to the virtio core (tools/series/commits/08-virtio-structures). An
 * unmodified kernel lacks it, so here its only implementation is called directly.
 *
 * There, the length of the configuration is what the transport has mapped. Here,
 * that is not accessible, so it is what the device reports now. If the device
 * reported less when the transport mapped it, get() of the transport is a BUG, as
 * for any driver of a device whose configuration is too short.
 */

#ifndef _VIRTIO_STRUCTURE_H
#define _VIRTIO_STRUCTURE_H

#include <linux/pci.h>
#include <linux/virtio.h>
#include <uapi/linux/virtio_pci.h>

struct virtio_structure {
	struct resource *res;
	u64 offset;
	u64 len;
};

/* Write access to the table would allow arbitrary interrupts by the device. */
static inline bool virtio_has_msix_table(struct pci_dev *dev, u8 bar)
{
	int pos = pci_find_capability(dev, PCI_CAP_ID_MSIX);
	u32 table;

	if (!pos)
		return false;
	pci_read_config_dword(dev, pos + PCI_MSIX_TABLE, &table);
	return (table & PCI_MSIX_TABLE_BIR) == bar;
}

static inline int virtio_get_structure(struct virtio_device *vdev,
				       struct virtio_structure *structure,
				       u8 type)
{
	struct device *parent = vdev->dev.parent;
	struct pci_dev *dev;
	u32 offset, len;
	/* The configuration space has no room for more, so more form a loop. */
	int left = (PCI_CFG_SPACE_SIZE - PCI_STD_HEADER_SIZEOF) / PCI_CAP_SIZEOF;
	int pos;

	if (!dev_is_pci(parent))
		return -EOPNOTSUPP;
	dev = to_pci_dev(parent);
	for (pos = pci_find_capability(dev, PCI_CAP_ID_VNDR); pos && left;
	     pos = pci_find_next_capability(dev, pos, PCI_CAP_ID_VNDR), left--) {
		u8 cfg_type, bar;

		pci_read_config_byte(dev, pos + offsetof(struct virtio_pci_cap,
							 cfg_type), &cfg_type);
		pci_read_config_byte(dev, pos + offsetof(struct virtio_pci_cap,
							 bar), &bar);
		/* The virtio core ignores other BARs, too. */
		if (cfg_type != type || bar >= PCI_STD_NUM_BARS ||
		    !pci_resource_len(dev, bar))
			continue;
		if (type != VIRTIO_PCI_CAP_DEVICE_CFG &&
		    virtio_has_msix_table(dev, bar))
			return -EINVAL;

		pci_read_config_dword(dev, pos + offsetof(struct virtio_pci_cap,
							  offset), &offset);
		pci_read_config_dword(dev, pos + offsetof(struct virtio_pci_cap,
							  length), &len);
		if (!len || (u64)offset + len > pci_resource_len(dev, bar))
			return -EINVAL;
		structure->res = pci_resource_n(dev, bar);
		structure->offset = offset;
		structure->len = len;
		return 0;
	}
	return -ENOENT;
}

#endif
