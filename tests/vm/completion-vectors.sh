# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Each completion vector has a named interrupt of its own, with an affinity hint. Every processor gets some vectors.
# lab: fabric=local
# lab: cpus=2
. "$LAB_LIB"

virtio=$(on a sh -c "cd /sys/class/infiniband/$DEV/device && echo virtio*")
vectors=$(on a ibv_devinfo -v -d "$DEV" | sed -n 's/.*num_comp_vectors:[[:space:]]*//p')
processors=$(on a nproc)
[ "${vectors:-0}" -gt 1 ] || fail "the device has ${vectors:-no} completion vectors"
[ "$processors" -gt 1 ] || fail "VM a has one processor"

masks=()
for ((vector = 0; vector < vectors; vector++)); do
	irqs=$(on a sed -n "s/^ *\([0-9]*\):.* $virtio-completion\.$vector\$/\1/p" /proc/interrupts)
	[ "$(wc -w <<<"$irqs")" = 1 ] || fail "interrupts of completion vector $vector: ${irqs:-none}"
	masks+=("$((16#$(on a sed 's/,//g' "/proc/irq/$irqs/affinity_hint")))")
done
for ((vector = 0; vector < vectors; vector++)); do
	[ "${masks[vector]}" = $((1 << vector % processors)) ] ||
		fail "processors of the completion vectors, of $processors: ${masks[*]}"
done
for queue in control async; do
	on a cat /proc/interrupts | found " $virtio-$queue\$" || fail "the queue $queue has no interrupt"
done
