// SPDX-License-Identifier: GPL-2.0

#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>

__rust_helper struct net_device *
rust_helper_netdev_notifier_info_to_dev(const void *info)
{
	return netdev_notifier_info_to_dev(info);
}

__rust_helper void rust_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

/* Whether @dev is an Ethernet device (no VLAN on one) with that permanent address. */
__rust_helper bool
rust_helper_netdev_is_ethernet_with_perm_addr(const struct net_device *dev,
					      const u8 *addr)
{
	return dev->type == ARPHRD_ETHER && !is_vlan_dev(dev) &&
	       ether_addr_equal_unaligned(dev->perm_addr, addr);
}

__rust_helper bool rust_helper_netif_running(const struct net_device *dev)
{
	return netif_running(dev);
}

__rust_helper bool rust_helper_netif_carrier_ok(const struct net_device *dev)
{
	return netif_carrier_ok(dev);
}

__rust_helper unsigned int rust_helper_netdev_mtu(const struct net_device *dev)
{
	return READ_ONCE(dev->mtu);
}
