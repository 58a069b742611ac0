// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What `tools/setup` says when it cannot go on, and what it leaves behind then. Nothing is downloaded or installed.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Adds a script to one of the setup in the tree.
fn append(tree: &TempDir, name: &str, script: &str) {
    let path = tree.path().join("tools/setup").join(name);
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(script.as_bytes()).unwrap();
}

/// A tree with a copy of the setup in it, and a cache. Instead of compilers, it gets the file `compilers`.
fn tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../setup");
    fs::create_dir(tree.path().join("tools")).unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(setup)
        .arg(tree.path().join("tools/setup"))
        .status()
        .unwrap();
    assert!(copied.success());
    fs::create_dir_all(tree.path().join("build/setup")).unwrap();
    append(
        &tree,
        "compilers.sh",
        "setup_compilers() { touch \"$TREE/compilers\"; }\n",
    );
    tree
}

fn bash(tree: &TempDir, script: &str) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(tree)
        .env("VRNIC_CACHE", tree.path().join("cache"))
        // The setup finds enough space.
        .env("BASH_FUNC_df%%", r"() { printf 'Avail\n99999M\n'; }")
        .env_remove("VRNIC_KERNEL")
        .env_remove("KDIR");
    command
}

/// Waits until `done` returns true.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Its last words, which name what is wrong and what to do: it has failed.
fn words(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(lines[1].starts_with("setup: "), "{text}");
    assert!(lines[0].starts_with("       "), "{text}");
    text.into_owned()
}

#[test]
fn a_kernel_of_ones_own_must_fit() {
    let tree = tree();
    let kernel = tree.path().join("linux");
    let says = |what: &str| {
        let output = bash(&tree, "exec bash tools/setup/setup.sh kernel")
            .env("KDIR", &kernel)
            .output()
            .unwrap();
        let text = words(&output);
        assert!(text.contains(what), "{text}");
        assert!(!tree.path().join("build/kernel").exists());
        assert!(!tree.path().join("compilers").exists());
    };
    let write = |file: &str, text: &str| {
        let path = kernel.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    says("is not a directory");
    fs::create_dir(&kernel).unwrap();
    says("has no .config");
    write(".config", "# CONFIG_RUST is not set\n");
    says("has no CONFIG_RUST=y");
    write(".config", "CONFIG_RUST=y\n");
    says("has no CONFIG_INFINIBAND");
    write(".config", "CONFIG_RUST=y\nCONFIG_INFINIBAND=m\n");
    says("has no include/config/kernel.release");
    write("include/config/kernel.release", "6.12.0-rc1\n");
    says("has no arch/x86/boot/bzImage");
    write("arch/x86/boot/bzImage", "");
    says("has no Module.symvers");
    write("Module.symvers", "");
    says("has no rust/libkernel.rmeta");
    write("rust/libkernel.rmeta", "");
    says("is 6.12.0-rc1, and the driver needs 7.3 or newer");
}

#[test]
fn a_kernel_of_another_rust_is_told() {
    let tree = tree();
    fs::write(
        tree.path().join(".config"),
        "CONFIG_RUSTC_VERSION_TEXT=\"rustc 1.0.0 (of old)\"\n",
    )
    .unwrap();
    let script = ". tools/setup/lib.sh; . tools/setup/kernel.sh
        mkdir -p bin; printf '#!/bin/sh\necho rustc 2.0.0\n' >bin/rustc; chmod +x bin/rustc
        KDIR=. KERNEL_TREE=. COMPILERS_DIR=.; kernel_own_compilers";
    let text = words(&bash(&tree, script).output().unwrap());
    assert!(
        text.contains("another Rust: rustc 1.0.0 (of old)"),
        "{text}"
    );
}

#[test]
fn want_of_space_is_told_before_anything_is_made() {
    let tree = tree();
    let script = ". tools/setup/lib.sh; df() { printf 'Avail\n99M\n'; }
        need_space 99 'this'; echo enough; need_space 100 'the kernel'; echo made";
    let output = bash(&tree, script).output().unwrap();
    let text = words(&output);
    assert!(text.contains("the kernel needs 100 MiB"), "{text}");
    assert!(text.contains("99 MiB are free"), "{text}");
    assert_eq!(output.stdout, b"enough\n");
}

#[test]
fn want_of_space_for_packages_is_told() {
    let tree = tree();
    let script = ". tools/setup/lib.sh; . tools/setup/packages.sh; df() { printf 'Avail\n99M\n'; }
        apt-get() { [ \"$1\" != -s ] || printf 'Inst %s (1 Debian)\n' one other; }
        apt-cache() { printf 'Package: %s\nInstalled-Size: 60000\n\n' \"${@:3}\"; }
        missing() { echo one; }; apt_refresh() { :; }; apt_install() { touch installed; }
        install_missing tools one";
    let text = words(&bash(&tree, script).output().unwrap());
    let expected = "what is installed (tools) needs 118 MiB in /usr, but only 99 MiB are free";
    assert!(text.contains(expected), "{text}");
    assert!(!tree.path().join("installed").exists());
}

#[test]
fn unknown_names_are_told() {
    let tree = tree();
    let run = |script: &str| words(&bash(&tree, script).output().unwrap());
    assert!(run("exec bash tools/setup/setup.sh kernle").contains("unknown part 'kernle'"));
    let text = run("VRNIC_KERNEL=new exec bash tools/setup/setup.sh kernel");
    assert!(text.contains("VRNIC_KERNEL=new is no kernel"), "{text}");
}

#[test]
fn a_step_that_fails_shows_the_end_of_its_log_and_ends_the_others() {
    let tree = tree();
    let script = ". tools/setup/lib.sh; (step slow \"$LOGS/slow.log\" 9 sleep 1000) &
        step broken \"$LOGS/broken.log\" 9 bash -c 'echo what broke; exit 3' || wait $! || exit 1";
    let text = words(&bash(&tree, script).output().unwrap());
    assert!(text.contains("what broke\nsetup: broken failed"), "{text}");
    let told = fs::read_to_string(tree.path().join("build/setup/failed")).unwrap();
    assert!(told.contains("broken failed"), "{told}");
    wait_until("the other step has ended", || !works_in(&tree));
}

#[test]
fn what_is_started_meanwhile_ends_too() {
    let tree = tree();
    let script = ". tools/setup/lib.sh
        bash -c 'for i in {1..300}; do sleep 1000 & done; wait' &
        until [ -n \"$(cat /proc/$!/task/$!/children)\" ]; do :; done
        end_all $!";
    let status = bash(&tree, script).status().unwrap();
    assert!(status.success());
    wait_until("all processes have ended", || !works_in(&tree));
}

#[test]
fn an_end_from_outside_ends_what_was_started() {
    let tree = tree();
    let pid = tree.path().join("pid");
    let script = ". tools/setup/lib.sh; step long \"$LOGS/long.log\" 9 sh -c 'sleep 1000 & echo $! >pid; wait'";
    let mut child = bash(&tree, script).spawn().unwrap();
    let mut sleeper = String::new();
    wait_until("the step begins", || {
        sleeper = fs::read_to_string(&pid).unwrap_or_default();
        sleeper.ends_with('\n')
    });
    let sleeper = sleeper.trim();
    let ended = Command::new("kill").arg(child.id().to_string()).status();
    assert!(ended.unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(130), None));
    let alive = || {
        fs::read_to_string(format!("/proc/{sleeper}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    wait_until("the step has ended", || !alive());
}

#[test]
fn an_old_qemu_is_told() {
    let tree = tree();
    let script = r#"printf '%s\n' '#!/bin/sh' "echo 'name \"vfio-pci\"'" >qemu; chmod +x qemu
        QEMU=$PWD/qemu exec bash tools/setup/setup.sh qemu"#;
    let text = words(&bash(&tree, script).output().unwrap());
    assert!(text.contains("qemu has no vfio-user-pci device"), "{text}");
    assert!(text.contains("use QEMU 10.1 or newer"), "{text}");
    let text = words(
        &bash(&tree, "exec bash tools/setup/setup.sh qemu")
            .env("QEMU", "/no/such/qemu")
            .output()
            .unwrap(),
    );
    assert!(text.contains("/no/such/qemu is not a program"), "{text}");
}

#[test]
fn a_tree_of_another_user_is_told() {
    use std::os::unix::fs::PermissionsExt as _;
    let tree = tree();
    let modes = [
        ("", 0o755),
        ("build", 0o755),
        ("build/setup", 0o555),
        ("cache", 0o777),
        ("cache/logs", 0o777),
    ];
    for (directory, mode) in modes {
        let directory = tree.path().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The other user can read it, whatever this one's umask is.
    let opened = Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(tree.path())
        .status();
    assert!(opened.unwrap().success());
    // To root, no directory is closed.
    let script = "[ $(id -u) != 0 ] || as='setpriv --reuid=65534 --regid=65534 --clear-groups'
        exec ${as:-} bash tools/setup/setup.sh packages";
    let text = words(&bash(&tree, script).output().unwrap());
    assert!(text.contains("this user may not write to "), "{text}");
    assert!(text.contains("use a source tree of your own"), "{text}");
}

#[test]
fn why_a_step_failed_is_told() {
    for (said, expected) in [
        (
            "Temporary failure resolving 'mirror.example'",
            "broken failed, because the network does not answer; check it",
        ),
        (
            "tar: usr: Cannot write: No space left on device",
            "broken failed, because a disk is full; make room in ",
        ),
        ("what broke", "broken failed\n"),
    ] {
        let tree = tree();
        let script = ". tools/setup/lib.sh
            step broken \"$LOGS/broken.log\" 9 bash -c 'echo \"$SAID\"; exit 3'";
        let output = bash(&tree, script).env("SAID", said).output().unwrap();
        let text = words(&output);
        assert!(text.contains(expected), "{text}");
    }
}

/// Makes the setup of the tree take QEMU from an `apt-get` that notes its downloads in the file `downloads`, and that
/// hangs in the middle of the first.
fn replace_downloads(tree: &TempDir) {
    let script = r#"
        mirror() { echo http://mirror.invalid; }
        qemu_find() { qemu_unpacked; }
        apt-get() {
            case "$*" in *--download-only*) ;; *) return ;; esac
            echo download >>"$TREE/downloads"
            local archives=$CACHE/apt/guest-only/qemu
            echo half >"$archives/qemu.deb"
            if [ "$(wc -l <"$TREE/downloads")" = 1 ]; then sleep 1000; fi
            echo whole >"$archives/qemu.deb"
        }
        dpkg-deb() {
            grep -q whole "$2" || return
            local lib=$3/usr/lib/x86_64-linux-gnu
            mkdir -p "$lib"
            printf '%s\n' '#!/bin/sh' "echo 'name \"vfio-user-pci\"'" >"$lib/ld-linux-x86-64.so.2"
            chmod +x "$lib/ld-linux-x86-64.so.2"
        }
"#;
    append(tree, "qemu.sh", script);
}

/// Returns whether a process works in the directory of the tree.
fn works_in(tree: &TempDir) -> bool {
    let directory = tree.path().canonicalize().unwrap();
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|process| fs::read_link(process.ok()?.path().join("cwd")).ok())
        .any(|cwd| cwd == directory)
}

#[test]
fn an_interrupted_download_starts_again() {
    let tree = tree();
    replace_downloads(&tree);
    let setup = || bash(&tree, "exec bash tools/setup/setup.sh qemu");
    let downloads = tree.path().join("downloads");
    let count = || fs::read_to_string(&downloads).map_or(0, |text| text.lines().count());
    let mut child = setup().spawn().unwrap();
    wait_until("a download begins", || {
        assert_eq!(child.try_wait().unwrap(), None);
        count() > 0
    });
    let ended = Command::new("kill").arg(child.id().to_string()).status();
    assert!(ended.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Nothing goes on, also not in subshells.
    wait_until("all processes have ended", || !works_in(&tree));

    // What is half made does not count as done.
    let complete = || {
        let qemus = fs::read_dir(tree.path().join("cache/qemu")).unwrap();
        let complete = qemus.filter(|it| it.as_ref().unwrap().path().join(".complete").exists());
        complete.count()
    };
    assert_eq!(complete(), 0);
    for _ in 0..2 {
        let output = setup().output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!((count(), complete()), (2, 1));
    }
    let qemu = Command::new(tree.path().join("build/setup/qemu"))
        .args(["-device", "help"])
        .output()
        .unwrap();
    assert_eq!(qemu.stdout, b"name \"vfio-user-pci\"\n");
}
