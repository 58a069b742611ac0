#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# vrnicd and its tools in a fresh Debian 13: they run, as the user that the package makes; manual pages, completions and
# units are right; purged, nothing is left, and no recording of a virtual machine's memory.
. "$(dirname "$0")/fresh.bash"
fresh trixie <<'INSIDE'
apt-get -yqq install man-db bash-completion systemd >/dev/null
dependencies vrnicd >/dev/null
state >/tmp/before
install_ours vrnicd >/dev/null

vrnicd --version
vrnicctl --help >/dev/null
vrnic-replay --help >/dev/null

for page in vrnicd vrnicctl vrnicctl-qps vrnic-replay vrnic-faults; do man -w "$page" >/dev/null; done
man vrnicd | grep -q -e --config || fail "man vrnicd does not name --config"
for file in $(dpkg -L vrnicd | grep '^/usr/share/man/.*gz$'); do
	said=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$file" 2>&1 >/dev/null)
	[ -z "$said" ] || fail "$file: $said"
done
for program in vrnicd vrnicctl vrnic-replay; do
	bash -c ". /usr/share/bash-completion/completions/$program && complete -p $program" >/dev/null
	[ -s "/usr/share/zsh/vendor-completions/_$program" ] || fail "zsh has no completions for $program"
	[ -s "/usr/share/fish/vendor_completions.d/$program.fish" ] || fail "fish has no completions for $program"
done

for unit in service socket; do cp "/usr/lib/systemd/system/vrnicd@.$unit" "/tmp/vrnicd@rnic0.$unit"; done
said=$(systemd-analyze verify --man=no --recursive-errors=no /tmp/vrnicd@rnic0.{service,socket} 2>&1) || fail "$said"
[ -z "$said" ] || fail "$said"
systemd-analyze security --offline=true --no-pager --threshold=25 /tmp/vrnicd@rnic0.service | tail -n 1

[ "$(stat -c '%a %U %G' /run/vrnic)" = "750 vrnic vrnic" ] || fail "/run/vrnic: $(stat -c '%a %U %G' /run/vrnic)"
cp /usr/share/doc/vrnicd/examples/vrnicd.toml /etc/vrnic/rnic0.toml
setpriv --reuid=vrnic --regid=vrnic --init-groups vrnicd --config /etc/vrnic/rnic0.toml 2>/tmp/log &
for try in $(seq 100); do [ ! -S /run/vrnic/rnic0.sock ] || break; sleep 0.1; done
vrnicctl devices | tee /tmp/devices
grep -q '^rnic0 ' /tmp/devices || fail "the example's device is not there: $(cat /tmp/log)"
kill %1
wait %1 || fail "vrnicd did not stop cleanly: $(cat /tmp/log)"
rm /etc/vrnic/rnic0.toml

# A recording of a device that failed, where the unit lets vrnicd put it.
directory=/var/lib/$(sed -n 's/^StateDirectory=//p' /usr/lib/systemd/system/vrnicd@.service | sed s/%i/rnic0/)
install -d "${directory%/*}"
install -d -o vrnic -g vrnic -m 0700 "$directory"
setpriv --reuid=vrnic --regid=vrnic --init-groups touch "$directory/rnic0-crash.vrnic"
dpkg --remove vrnicd >/dev/null
[ -f "$directory/rnic0-crash.vrnic" ] || fail "the recording went before the package was purged"
dpkg --purge vrnicd >/dev/null
state >/tmp/after
diff /tmp/before /tmp/after || fail "files are left after the removal"
INSIDE
echo "ok: vrnicd installs, runs and leaves nothing"
