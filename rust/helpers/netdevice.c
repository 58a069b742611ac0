// SPDX-License-Identifier: GPL-2.0

#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>

__rust_helper struct net_device *
rust_helper_netdev_notifier_info_to_dev(const void *info)
{
	return netdev_notifier_info_to_dev(info);
}

__rust_helper void rust_helper_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

/*
 * Returns whether @dev is an Ethernet device with a permanent address that is not on top of another
 * device, and if so that address. The permanent address of software devices (veth, dummy, bridge)
 * is all zeros; but VLANs, macvlan and ipvlan devices can have that of the device below.
 */
__rust_helper bool
rust_helper_netdev_ethernet_perm_addr(const struct net_device *dev, u8 *addr)
{
	if (dev->type != ARPHRD_ETHER || dev->netdev_ops->ndo_get_iflink)
		return false;
	if (!is_valid_ether_addr(dev->perm_addr))
		return false;
	memcpy(addr, dev->perm_addr, ETH_ALEN);
	return true;
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

#ifdef CONFIG_INFINIBAND_VRNIC_KUNIT_TEST
static netdev_tx_t test_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb_any(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops test_ops = {
	.ndo_start_xmit = test_xmit,
};

static int test_get_iflink(const struct net_device *dev)
{
	return LOOPBACK_IFINDEX;
}

static const struct net_device_ops test_stacked_ops = {
	.ndo_start_xmit = test_xmit,
	.ndo_get_iflink = test_get_iflink,
};

static void test_setup(struct net_device *dev)
{
	ether_setup(dev);
	dev->netdev_ops = &test_ops;
}

/*
 * Adds an Ethernet device with permanent address @addr that drops all packets; if @stacked, it says
 * that it is on top of another.
 */
__rust_helper struct net_device *rust_helper_test_netdev_add(const u8 *addr, bool stacked)
{
	struct net_device *dev = alloc_netdev(0, "rdmatest%d", NET_NAME_ENUM, test_setup);

	if (!dev)
		return NULL;
	eth_hw_addr_set(dev, addr);
	if (stacked)
		dev->netdev_ops = &test_stacked_ops;
	if (register_netdev(dev)) {
		free_netdev(dev);
		return NULL;
	}
	return dev;
}

__rust_helper void rust_helper_test_netdev_remove(struct net_device *dev)
{
	unregister_netdev(dev);
	free_netdev(dev);
}

__rust_helper int rust_helper_test_netdev_open(struct net_device *dev)
{
	int err;

	rtnl_lock();
	err = dev_open(dev, NULL);
	rtnl_unlock();
	return err;
}

__rust_helper int rust_helper_test_netdev_set_mtu(struct net_device *dev, int mtu)
{
	int err;

	rtnl_lock();
	err = dev_set_mtu(dev, mtu);
	rtnl_unlock();
	return err;
}

__rust_helper void rust_helper_test_netdev_carrier_off(struct net_device *dev)
{
	netif_carrier_off(dev);
}
#endif
