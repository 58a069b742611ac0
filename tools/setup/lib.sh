# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Shared by the setup scripts: where things are cached, how they are keyed, how progress and failures look.
# Sourced by bash with `set -euo pipefail`.

SETUP_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TREE=$(cd "$SETUP_DIR/../.." && pwd)
CACHE=${VRNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vrnic}
LOGS=$CACHE/logs
JOBS=${VRNIC_JOBS:-$(nproc)}
mkdir -p "$CACHE" "$LOGS"

# Debian's own tools first: a rustup toolchain earlier in PATH has no rust-src and would be picked up by Kbuild.
export PATH=/usr/bin:/bin:/usr/sbin:/sbin
export LC_ALL=C.UTF-8

say() { printf '%s\n' "$*"; }

# die WHAT WHAT_TO_DO: every failure names both.
die() {
	printf 'setup: %s\n' "$1" >&2
	[ $# -lt 2 ] || printf '       %s\n' "$2" >&2
	exit 1
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "root is needed for: $*" "run as root, or install sudo and allow this user to use it"
	fi
}

# key_of STRING...: a short hash over the strings and over the contents of those that are files.
key_of() {
	local item
	for item in "$@"; do
		if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi
	done | sha256sum | cut -c1-16
}

# ready DIR: true once DIR was finished; the stamp is the last thing written.
ready() { [ -f "$1/.complete" ]; }
finish() { date -u +%FT%TZ >"$1/.complete"; }

# step WHAT LOG LINES COMMAND...: runs COMMAND with its output in LOG and shows how far it is. LINES is the number of
# lines the log usually has, which is what the bar is measured by. On a terminal the line is redrawn; elsewhere one
# line every 20 seconds keeps a log readable.
step() {
	local what=$1 log=$2 lines=$3 pid start now last=0 done_lines pct bar filled
	shift 3
	start=$(date +%s)
	: >"$log"
	[ -t 1 ] || say "$what ..."
	"$@" >>"$log" 2>&1 &
	pid=$!
	STEP_PID=$pid
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.5
		now=$(($(date +%s) - start))
		done_lines=$(wc -l <"$log")
		pct=$((done_lines * 100 / lines))
		[ "$pct" -le 99 ] || pct=99
		if [ -t 1 ]; then
			filled=$((pct / 4))
			bar=$(printf '%*s' "$filled" '' | tr ' ' '#')
			printf '\r%-42s [%-25s] %2d%% %4ds ' "$what" "$bar" "$pct" "$now"
		elif [ $((now - last)) -ge 20 ]; then
			last=$now
			say "$what: about $pct% after ${now}s"
		fi
	done
	if wait "$pid"; then
		now=$(($(date +%s) - start))
		if [ -t 1 ]; then printf '\r%-42s [%-25s] done %4ds\n' "$what" "#########################" "$now"; else say "$what: done in ${now}s"; fi
	else
		[ ! -t 1 ] || printf '\n'
		say "--- last lines of $log" >&2
		tail -n 20 "$log" >&2
		die "$what failed" "the whole log is $log; correct the cause and run the same command again (finished parts are kept)"
	fi
	STEP_PID=
}
STEP_PID=
trap '[ -z "$STEP_PID" ] || kill "$STEP_PID" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

# The Debian release this machine runs: 12 or 13.
host_release() {
	local id version
	id=$(. /etc/os-release && echo "${ID:-}")
	version=$(. /etc/os-release && echo "${VERSION_ID:-}")
	case $id/$version in
	debian/12 | debian/13) echo "$version" ;;
	*) die "this is $id $version; the setup knows Debian 12 and 13" "set KDIR= and QEMU= and install the packages that tools/setup/packages.sh names yourself, then VRNIC_NO_PACKAGES=1" ;;
	esac
}

# The address of this machine's own Debian mirror, from its apt configuration.
mirror() {
	local codename uri
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		awk -v r="$codename" '$1 == r { print $2; exit }')
	[ -n "$uri" ] || die "apt on this machine has no source for '$codename'" "add the Debian mirror to /etc/apt/sources.list"
	printf '%s\n' "$uri"
}

# apt_state NAME STATUS SUITE...: a private apt state with these suites of the machine's mirror, so that the machine's
# own sources stay as they are. STATUS is the dpkg status it sees (/dev/null: as if nothing were installed).
# Sets APT_CONFIG for what follows.
apt_state() {
	local name=$1 status=$2 dir suite uri stamp options
	shift 2
	dir=$CACHE/apt/$name
	uri=$(mirror)
	mkdir -p "$dir"/{etc/preferences.d,state,lists/partial,cache/archives/partial}
	[ "$status" != empty ] || { status=$dir/state/status; : >"$status"; }
	for suite in "$@"; do
		options=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
		# A mirror that stands still has unstable and testing past their dates; what it signed is as good as ever.
		case $suite in sid | forky) options+=' check-valid-until=no' ;; esac
		printf 'deb [%s] %s %s main\n' "$options" "$uri" "$suite"
	done >"$dir/etc/sources.list.new"
	cat >"$dir/apt.conf" <<-EOF
		Dir::Etc "$dir/etc";
		Dir::Etc::main "/etc/apt/apt.conf";
		Dir::Etc::parts "/etc/apt/apt.conf.d";
		Dir::Etc::sourcelist "$dir/etc/sources.list";
		Dir::Etc::sourceparts "-";
		Dir::State "$dir/state";
		Dir::State::lists "$dir/lists";
		Dir::State::status "$status";
		Dir::Cache "$dir/cache";
		APT::Architecture "amd64";
		APT::Sandbox::User "";
		Acquire::Languages "none";
	EOF
	export APT_CONFIG=$dir/apt.conf
	stamp=$dir/updated
	# Package indexes are fetched once a day at most.
	if ! cmp -s "$dir/etc/sources.list.new" "$dir/etc/sources.list" || [ -z "$(find "$stamp" -mmin -1440 2>/dev/null)" ]; then
		mv "$dir/etc/sources.list.new" "$dir/etc/sources.list"
		step "package indexes ($*)" "$LOGS/apt-$name.log" 12 apt-get -o APT::Update::Error-Mode=any update
		touch "$stamp"
	else
		rm -f "$dir/etc/sources.list.new"
	fi
}

# lock: one setup at a time; a second one waits and says so.
lock() {
	exec 9>"$CACHE/lock"
	if ! flock -n 9; then
		say "another setup is running; waiting for it"
		flock 9
	fi
}
