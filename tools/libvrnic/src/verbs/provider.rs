// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs when libibverbs loads this library: checks the version of libibverbs and registers the
//! provider.

use super::context;
use crate::ffi::abi::{LEVELS, Level};
use crate::ffi::driver::*;
use crate::ffi::functions::{__verbs_log, verbs_register_driver};
use crate::ffi::{CString, Opaque};
use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use vrnic_wire::abi::{ABI_VERSION, DRIVER_ID};

/// Number of the private ABI that this provider was built for.
const PRIVATE_ABI: u32 = match u32::from_str_radix(env!("VRNIC_PRIVATE_ABI"), 10) {
    Ok(number) => number,
    Err(_) => panic!("the private ABI is a number"),
};

/// Number of the level of the library that loaded us. Set before the provider is registered.
static LEVEL: AtomicU32 = AtomicU32::new(0);

static MATCH_TABLE: [verbs_match_ent; 2] = [
    match_entry(VERBS_MATCH_DRIVER_ID, DRIVER_ID as u64),
    match_entry(VERBS_MATCH_SENTINEL, 0),
];

const fn match_entry(kind: u8, value: u64) -> verbs_match_ent {
    verbs_match_ent {
        driver_data: ptr::null_mut(),
        u: value,
        vendor: 0,
        device: 0,
        kind,
    }
}

static PROVIDER: verbs_device_ops = verbs_device_ops {
    name: CString(c"vrnic".as_ptr()),
    match_min_abi_version: ABI_VERSION,
    match_max_abi_version: ABI_VERSION,
    match_table: &raw const MATCH_TABLE[0],
    static_providers: ptr::null(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: Some(context::import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

/// Called by the dynamic linker once this library is mapped.
#[used]
// SAFETY: A function without arguments, as the section requires. It needs nothing that the dynamic
// linker has not set up by then.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = register;

extern "C" fn register() {
    match level_of_library() {
        Ok(level) => {
            LEVEL.store(level.number, Relaxed);
            // SAFETY: The table has the layout of the library, and lives forever.
            unsafe { verbs_register_driver(&raw const PROVIDER) };
        }
        Err((how, known)) => complain(how, known),
    }
}

/// Returns the level of the library that loaded us.
pub fn level() -> &'static Level {
    let number = LEVEL.load(Relaxed);
    let level = LEVELS.iter().find(|level| level.number == number);
    level.expect("the provider was registered")
}

/// Returns the level of the library that is loading us, or how it differs from one that this
/// provider was built for.
///
/// The private ABI fits, or the dynamic linker would not have resolved our symbols. But its number
/// was not raised with every change of a layout, so the public level must be known, too.
fn level_of_library() -> Result<&'static Level, (&'static CStr, &'static Level)> {
    let found = levels().rev().find(|level| {
        // SAFETY: The names are C strings.
        let symbol = unsafe {
            libc::dlvsym(
                libc::RTLD_DEFAULT,
                level.symbol.as_ptr(),
                level.version.as_ptr(),
            )
        };
        !symbol.is_null()
    });
    let oldest = levels().next().expect("each private ABI has a level");
    let level = found.ok_or((c"older", oldest))?;
    // The linker defines an absolute symbol for each version, with the version's own name.
    for newer in level.number + 1..100 {
        let name = version_name(newer);
        // SAFETY: The name ends in NUL. An absolute symbol may have the value 0, so only the error
        // tells whether it exists.
        let missing = unsafe {
            libc::dlerror();
            libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            !libc::dlerror().is_null()
        };
        if !missing {
            return Err((c"newer", level));
        }
    }
    Ok(level)
}

/// Returns the levels of our private ABI, oldest first.
fn levels() -> impl DoubleEndedIterator<Item = &'static Level> {
    LEVELS
        .iter()
        .filter(|level| level.private_abis.contains(&PRIVATE_ABI))
}

/// Returns `IBVERBS_1.<level>` for a two-digit level.
fn version_name(level: u32) -> [c_char; 13] {
    let mut name = *b"IBVERBS_1.00\0";
    name[10] += (level / 10 % 10) as u8;
    name[11] += (level % 10) as u8;
    name.map(|byte| byte as c_char)
}

/// Reports why there will be no device: in the log of libibverbs, and on stderr if that is
/// requested.
fn complain(how: &CStr, known: &Level) {
    let format = c"vrnic: not loaded: libibverbs is %s than level 1.%u of private ABI %u, which this was built for\n";
    // SAFETY: The arguments are those that the format names.
    unsafe {
        __verbs_log(
            ptr::null_mut(),
            VERBS_LOG_ERR,
            format.as_ptr(),
            how.as_ptr(),
            known.number,
            PRIVATE_ABI,
        );
        if !libc::getenv(c"VRNIC_DEBUG".as_ptr()).is_null() {
            crate::ffi::dprintf(2, format.as_ptr(), how.as_ptr(), known.number, PRIVATE_ABI);
        }
    }
}

/// Allocates a device after libibverbs has found one for this provider.
unsafe extern "C" fn alloc_device(_sysfs: *mut Opaque) -> *mut verbs_device {
    // SAFETY: Any size is valid; libibverbs expects zeros.
    unsafe { libc::calloc(1, size_of::<verbs_device>()) }.cast()
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: Allocated by `alloc_device`; libibverbs has dropped the last reference.
    unsafe { libc::free(device.cast()) };
}
