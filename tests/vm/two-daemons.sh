#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Two vrnicd in two network namespaces, as on two hosts, with a VM each: their networks are one.
# lab: timeout=300
# lab: two-daemons
. "$LAB_LIB"

on a ping -c 3 -W 5 "$IP_b" >/dev/null || fail "no IPv4"
on b ping -c 3 -W 5 "$IP6_a" >/dev/null || fail "no IPv6"
on a ping -c 3 -W 5 -M do -s 8972 "$IP_b" >/dev/null || fail "no frames of 9000 bytes"
on -t 60 a ping -q -f -c 2000 -s 1000 "$IP_b" | grep -q ' 0% packet loss' || fail "packets are lost"
