// SPDX-License-Identifier: GPL-2.0

#include <net/netlink.h>

__rust_helper struct nlattr *rust_helper_nla_nest_start(struct sk_buff *skb,
							int attrtype)
{
	return nla_nest_start(skb, attrtype);
}

__rust_helper int rust_helper_nla_nest_end(struct sk_buff *skb,
					   struct nlattr *start)
{
	return nla_nest_end(skb, start);
}

__rust_helper void rust_helper_nla_nest_cancel(struct sk_buff *skb,
					       struct nlattr *start)
{
	nla_nest_cancel(skb, start);
}
