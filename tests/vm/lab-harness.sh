#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# The lab itself works: output, exit codes, time limits, background programs, pairs of perftest programs.
# lab: timeout=180
. "$LAB_LIB"

[ "$(on a hostname)" = a ] || fail "the hostname of VM a is not a"
[ "$(on b sh -c 'echo out; echo err >&2' 2>/dev/null)" = out ] || fail "stdout and stderr are mixed"
code=0; on a sh -c 'exit 7' || code=$?
[ $code = 7 ] || fail "exit code $code, not 7"
code=0; on -t 1 a sleep 30 || code=$?
[ $code = 124 ] || fail "time limit gave $code, not 124"
code=0; on a /no/such/program 2>/dev/null || code=$?
[ $code = 127 ] || fail "a missing program gave $code, not 127"
size=$(on a head -c 300000 /dev/zero | wc -c)
[ "$size" = 300000 ] || fail "only $size of 300000 bytes arrived"

# A test whose lab has ended does not start a lab of its own.
code=0; LAB_CONTROL=$LAB_DIR/nowhere on a true 2>"$LAB_DIR/said" || code=$?
{ [ $code = 1 ] && found "has ended" <"$LAB_DIR/said" >/dev/null; } || fail "without a lab, the exit code is $code: $(cat "$LAB_DIR/said")"

# When its client is killed, a program is killed with its whole process group.
on a sh -c 'sleep 4242 & sleep 4242' &
client=$!
for _ in $(seq 50); do [ "$(on a pgrep -c -f 'sleep 4242' || true)" -ge 2 ] && break; done
pkill -P $client || true
kill $client 2>/dev/null || true # it may have ended with its child
for _ in $(seq 50); do on a pgrep -f '^sleep 4242' >/dev/null || break; done
! on a pgrep -f '^sleep 4242' || fail "the program of a killed client still runs"

on a ping -c 1 -W 5 "$IP_b" >/dev/null || fail "the VMs do not reach each other"
on b ping -c 1 -W 5 "$IP6_a" >/dev/null || fail "the VMs do not reach each other over IPv6"
perf a b ibv_rc_pingpong -n 50 | found usec/iter || fail "no pingpong"
perf b b ib_write_lat -s 8 -n 50 | found t_typical || fail "no loopback"
if perf a b ib_write_bw -s 0x >/dev/null 2>&1; then fail "a failing pair was reported as passed"; fi
