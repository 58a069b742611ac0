# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
# Shared by the setup scripts: where things are cached, how they are keyed, how progress and failures are reported.
# Sourced by bash with `set -euo pipefail`.

SETUP_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TREE=$(cd "$SETUP_DIR/../.." && pwd)
CACHE=${VRNIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vrnic}
LOGS=$CACHE/logs
JOBS=${VRNIC_JOBS:-$(nproc)}
mkdir -p "$CACHE" "$LOGS" 2>/dev/null || {
	echo "setup: cannot create $CACHE" >&2
	echo "       give a directory that this user can write to: VRNIC_CACHE=DIR" >&2
	exit 1
}
# Builds here choose their own number of jobs: stay out of the jobserver of a calling make.
unset MAKEFLAGS MFLAGS MAKELEVEL

# Debian's own tools come first: a rustup toolchain earlier in PATH has no rust-src, and Kbuild would use it.
export PATH=/usr/bin:/bin:/usr/sbin:/sbin
export LC_ALL=C.UTF-8

say() { printf '%s\n' "$*"; }

# die WHAT WHAT_TO_DO: ends the setup; every failure says what went wrong and what to do about it. Setups of other parts
# that run in parallel stop when they see the file $FAILED (see step()), and make prints it at the end.
FAILED=$TREE/build/setup/failed
die() {
	printf '%s\n' "setup: $1" ${2:+"       $2"} | tee "$FAILED" >&2
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

# key_of STRING...: prints a short hash of the strings; of strings that name files, it hashes the contents without
# comments.
key_of() {
	local item
	for item in "$@"; do
		if [ -f "$item" ]; then grep -vE '^[[:blank:]]*(#|$)' "$item"; else printf '%s\n' "$item"; fi
	done | sha256sum | cut -c1-16
}

# ready DIR: succeeds if DIR is complete, that is, if the stamp, which is written last, exists.
ready() { [ -f "$1/.complete" ]; }
finish() { date -u +%FT%TZ >"$1/.complete"; }

# need_space MIB WHAT [DIRECTORY]: fails if there is too little space, in the cache unless a directory is given, before
# something is left half made.
need_space() {
	local dir=${3:-$CACHE} free instead=', or set VRNIC_CACHE= to a directory on a larger disk'
	[ -z "${3:-}" ] || instead=
	free=$(df --output=avail -BM "$dir" | tail -n 1 | tr -dc 0-9)
	[ "$free" -ge "$1" ] || die "$2 needs $1 MiB in $dir, but only $free MiB are free" "make room there$instead"
}

# cause LOG: prints why a step failed, if its log shows that it was this machine's fault, and what to do.
cause() {
	if grep -q 'No space left on device' "$1"; then
		echo ", because a disk is full; make room in $CACHE, $TREE and ${TMPDIR:-/tmp}"
	elif grep -qE 'Temporary failure (in )?resolving|Could not (resolve|connect)|Unable to connect|Network is unreachable|onnection (refused|timed out)' "$1"; then
		echo ", because the network does not answer; check it, and the proxy in the settings of apt"
	fi
}

# step WHAT LOG LINES COMMAND...: runs COMMAND with its output in LOG and reports progress every 20 seconds, in complete
# lines, since other parts may print in between. LINES is the number of lines that the log usually has.
step() {
	local what=$1 log=$2 lines=$3 pid start now last=0 pct fd
	shift 3
	start=$(date +%s)
	: >"$log"
	say "$what ..."
	(
		# Close our locks and descriptors left open by others: dash, and so mmdebstrap, cannot handle descriptors above 9.
		for fd in "/proc/$BASHPID/fd"/*; do
			fd=${fd##*/}
			[ "$fd" -le 2 ] || [ "$fd" = 255 ] || eval "exec $fd>&-"
		done
		"$@"
	) >>"$log" 2>&1 &
	pid=$!
	STEP_PID=$pid
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		# The trap below is not that of subshells.
		[ ! -f "$FAILED" ] || { end_all "$pid"; exit 1; }
		now=$(($(date +%s) - start))
		if [ $((now - last)) -ge 20 ]; then
			last=$now
			pct=$(($(wc -l <"$log") * 100 / lines))
			[ "$pct" -le 99 ] || pct=99
			say "$what: about $pct% after ${now}s"
		fi
	done
	if wait "$pid"; then
		say "$what: done in $(($(date +%s) - start))s"
	else
		say "--- last lines of $log" >&2
		tail -n 20 "$log" >&2
		die "$what failed$(cause "$log")" \
			"the whole log is $log; correct the cause and run the same command again (finished parts are kept)"
	fi
	STEP_PID=
}
STEP_PID=
# end_all PID: ends the process and all its descendants.
end_all() {
	local child
	# Stopped, it starts nothing more meanwhile.
	kill -STOP "$1" 2>/dev/null || true
	for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do end_all "$child"; done
	# What sudo started belongs to root.
	kill "$1" 2>/dev/null || [ ! -e "/proc/$1" ] || as_root kill "$1" 2>/dev/null || true
	kill -CONT "$1" 2>/dev/null || true
}
trap '[ -z "$STEP_PID" ] || end_all "$STEP_PID"' EXIT
trap 'exit 130' INT TERM

# host_release: prints the Debian release of this machine, 12 or 13.
host_release() {
	local id version
	id=$(. /etc/os-release && echo "${ID:-}")
	version=$(. /etc/os-release && echo "${VERSION_ID:-}")
	case $id/$version in
	debian/12 | debian/13) echo "$version" ;;
	*) die "this is $id $version, but the setup supports only Debian 12 and 13" "set KDIR= and QEMU= and install the packages that tools/setup/packages.sh names yourself, then VRNIC_NO_PACKAGES=1" ;;
	esac
}

# mirror: prints the address of this machine's own Debian mirror, from its apt configuration.
mirror() {
	local codename uri
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	uri=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		awk -v r="$codename" '$1 == r { print $2; exit }')
	[ -n "$uri" ] || die "apt on this machine has no source for '$codename'" "add the Debian mirror to /etc/apt/sources.list"
	printf '%s\n' "$uri"
}

# apt_state NAME STATUS SUITE...: makes a private apt state with these suites of the machine's mirror, so that the
# machine's own sources are left alone. STATUS is the dpkg status file that apt sees (empty: as if nothing were
# installed). Sets APT_CONFIG for the commands that follow.
apt_state() {
	local name=$1 status=$2 dir suite uri stamp options
	shift 2
	dir=$CACHE/apt/$name
	need_space 500 "what is downloaded from the Debian mirror"
	uri=$(mirror)
	mkdir -p "$dir"/{etc/preferences.d,state,lists/partial,cache/archives/partial}
	# Other parts of the setup may use this state at the same time.
	exec 8>"$dir/lock"
	flock 8
	[ "$status" != empty ] || { status=$dir/state/status; : >"$status"; }
	for suite in "$@"; do
		options=signed-by=/usr/share/keyrings/debian-archive-keyring.gpg
		# On a mirror that is no longer updated, the release files of unstable and testing expire; their signatures remain
		# valid.
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
	# Fetch package indexes once a day at most.
	if ! cmp -s "$dir/etc/sources.list.new" "$dir/etc/sources.list" || [ -z "$(find "$stamp" -mmin -1440 2>/dev/null)" ]; then
		mv "$dir/etc/sources.list.new" "$dir/etc/sources.list"
		step "package indexes ($*)" "$LOGS/apt-$name.log" 12 apt-get -o APT::Update::Error-Mode=any update
		touch "$stamp"
	else
		rm -f "$dir/etc/sources.list.new"
	fi
	flock -u 8
}

# apt_closure PACKAGE...: prints what apt would install for these packages in the state of apt_state.
apt_closure() { apt-get -s -y --no-install-recommends install "$@" | awk '$1 == "Inst" { print $2 }'; }

# apt_version PACKAGE: prints the version that apt would install in that state, or nothing.
apt_version() { apt-cache policy "$1" | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'; }

# apt_fetch DIRECTORY PACKAGE...: downloads these packages and no others.
apt_fetch() {
	local dir=$1
	shift
	mkdir -p "$dir"
	(cd "$dir" && apt-get download "$@")
}

# own_loader ROOT PROGRAM...: replaces programs of packages that were unpacked in ROOT by scripts that run them with the
# loader and the libraries of ROOT, since this machine's may be older.
own_loader() {
	local lib=$1/usr/lib/x86_64-linux-gnu program
	shift
	for program in "$@"; do
		mv "$program" "$program.elf"
		cat >"$program" <<-EOF
			#!/bin/sh
			exec '$lib/ld-linux-x86-64.so.2' --argv0 "\$0" --library-path '$lib' '$program.elf' "\$@"
		EOF
		chmod +x "$program"
	done
}

# lock PART: lets only one setup prepare PART at a time; a second one says so and waits.
lock() {
	exec 9>"$CACHE/lock.$1"
	if ! flock -n 9; then
		say "another setup prepares this ($1); waiting for it"
		flock 9
	fi
}
