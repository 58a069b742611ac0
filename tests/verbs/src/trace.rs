// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Finds out which system calls a child process makes, with ptrace(2).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// The system call that is a [`mark`]; nothing else here makes it.
const MARK: libc::c_long = libc::SYS_getsid;
/// What a stop at a system call says beside `SIGTRAP`.
const AT_CALL: i32 = libc::SIGTRAP | 0x80;

/// Ends a section of this program for who watches it with [`sections`].
pub fn mark() {
    // SAFETY: the call reads its argument alone.
    unsafe { libc::syscall(MARK, 0) };
}

/// Runs a program to its end and returns the numbers of the system calls that its first thread made, in their order and
/// without marks: those before the first [`mark`], those before the second, and so on.
///
/// # Errors
/// The program did not start, or did not end well; the kernel does not let it be traced.
pub fn sections(command: &mut Command) -> io::Result<Vec<Vec<u64>>> {
    // SAFETY: what runs between fork and exec is one system call, which touches no memory.
    unsafe {
        command.pre_exec(|| {
            let none = ptr::null_mut::<libc::c_void>();
            done(libc::ptrace(libc::PTRACE_TRACEME, 0, none, none))
        });
    }
    let child = command.spawn()?.id() as libc::pid_t;
    let mut sections = vec![Vec::new()];
    loop {
        let mut status = 0;
        // SAFETY: `status` is writable, and the child is waited for by nobody else.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
            return Ok(sections);
        }
        if !libc::WIFSTOPPED(status) {
            return Err(io::Error::other(format!(
                "it ended with status {status:#x}"
            )));
        }
        let signal = match libc::WSTOPSIG(status) {
            AT_CALL => {
                match call_begins(child)? {
                    Some(number) if number == MARK as u64 => sections.push(Vec::new()),
                    Some(number) => sections.last_mut().expect("never empty").push(number),
                    None => {}
                }
                0
            }
            // It executes the program now.
            libc::SIGTRAP => {
                let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
                // SAFETY: the child is traced by this thread and stopped; no memory is named.
                done(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0, options) })?;
                0
            }
            signal => signal,
        };
        // SAFETY: as above.
        done(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, 0, signal) })?;
    }
}

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The system call that begins in the child, which stopped at one; `None` if one ends.
fn call_begins(child: libc::pid_t) -> io::Result<Option<u64>> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: the child is traced by this thread and stopped; `info` is writable with the size given.
    done(unsafe {
        let size = size_of_val(&info);
        libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, child, size, &raw mut info)
    })?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: `op` says that this is the variant that the kernel wrote.
    Ok(Some(unsafe { info.u.entry.nr }))
}
