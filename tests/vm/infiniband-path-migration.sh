# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# A connection between two VMs migrates to its alternate path and back: when its owner says so, and when the path in use
# loses packets until the retries are used up. The other end follows. Each end is told what the other did, all data
# arrive, and an end that migrates to a path that the other does not have is noticed.
# lab: fabric=infiniband
# lab: timeout=240
# lab: fresh
# Without probes, a request is sent as often as its retries say.
# lab: vrnicd-device recovery = "go-back-n"
# lab: vrnicd faults = true
. "$LAB_LIB"

on -t 200 a vrnic-migrate --device "$DEV" >"$LAB_DIR/server" 2>&1 &
server=$!
listening a 18900
on -t 200 b vrnic-migrate --device "$DEV" "$IP_a" >"$LAB_DIR/client" 2>&1 &
client=$!
# A request is lost as often as it is sent on this path.
within 60 grep -qx armed "$LAB_DIR/client" ||
	fail "the connection is not armed: $(cat "$LAB_DIR/client" "$LAB_DIR/server")"
vrnicctl fault add -d b drop type=rc dir=out opcode=write count=3 >/dev/null
wait $client || fail "the client: $(cat "$LAB_DIR/client")"
wait $server || fail "the server: $(cat "$LAB_DIR/server")"
[ "$(vrnicctl fault log -d b | grep -c ' drop ')" = 3 ] || fail "other packets were lost: $(vrnicctl fault log -d b)"
