// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replaces the functions of libibumad that look for hardware or talk to it, with libibumad's names, types and results
//! (see its manual pages and `umad.h`). Functions that only fill in an address or print are still those of libibumad.
//!
//! This is the only module with unsafe code. Its callers are C programs, whose arguments are trusted to be as the
//! manual pages say: pointers are null, or valid for as many bytes as stated there.

#![allow(unsafe_code, reason = "the interface is C's")]

use crate::record::{HEADER, LENGTH, MAD, OPEN, REGISTER, Record, UNREGISTER, USER_RMPP};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    io,
    os::{fd::AsRawFd, unix::net::UnixStream},
    ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};
use vrnic_infiniband::{
    attributes::{NodeInfo, PKeyTable, PortInfo},
    rmpp::MAX_MESSAGE,
};

/// Bytes of a name, as `UMAD_CA_NAME_LEN`.
const NAME: usize = 20;
/// Maximum number of ports, as `UMAD_CA_MAX_PORTS`.
const PORTS: usize = 10;
/// Bytes of a MAD.
const MAD_LENGTH: c_int = 256;
/// Name of the only HCA that a program sees.
const HCA: &CStr = c"vrnic0";

/// `struct umad_port`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UmadPort {
    ca_name: [u8; NAME],
    portnum: c_int,
    base_lid: c_uint,
    lmc: c_uint,
    sm_lid: c_uint,
    sm_sl: c_uint,
    state: c_uint,
    phys_state: c_uint,
    rate: c_uint,
    /// Big-endian, like the following two.
    capmask: u32,
    gid_prefix: u64,
    port_guid: u64,
    pkeys_size: c_uint,
    pkeys: *mut u16,
    link_layer: [u8; NAME],
}

/// `struct umad_ca`.
#[repr(C)]
pub struct UmadCa {
    ca_name: [u8; NAME],
    node_type: c_uint,
    numports: c_int,
    fw_ver: [u8; 20],
    ca_type: [u8; 40],
    hw_ver: [u8; 20],
    /// Big-endian, like the following one.
    node_guid: u64,
    system_guid: u64,
    ports: [*mut UmadPort; PORTS],
}

/// `struct umad_device_node`.
#[repr(C)]
pub struct UmadDeviceNode {
    next: *mut UmadDeviceNode,
    ca_name: *const c_char,
}

/// `struct umad_reg_attr`.
#[repr(C)]
pub struct UmadRegAttr {
    mgmt_class: u8,
    mgmt_class_version: u8,
    flags: u32,
    method_mask: [u64; 2],
    oui: u32,
    rmpp_version: u8,
}

/// An open port. Its number for the program is the file descriptor.
#[derive(Debug)]
struct Port {
    stream: UnixStream,
    next_agent: AtomicU32,
    /// Agents that may send messages longer than one MAD.
    long: Mutex<BTreeSet<u32>>,
    /// Held while a record is written or read.
    writing: Mutex<()>,
    reading: Mutex<()>,
}

static OPEN_PORTS: Mutex<BTreeMap<c_int, Arc<Port>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn port_of(portid: c_int) -> Option<Arc<Port>> {
    lock(&OPEN_PORTS).get(&portid).cloned()
}

/// Sets errno, and returns the result of a function that failed.
fn fail(error: c_int) -> c_int {
    // SAFETY: errno is the calling thread's own.
    unsafe { *libc::__errno_location() = error };
    -error
}

/// Connects to the subnet. Returns the stream and the description of the HCA.
fn connect() -> io::Result<(UnixStream, Record)> {
    let socket = env::var_os("VRNIC_SUBNET").ok_or(io::ErrorKind::NotFound)?;
    let name = env::var("VRNIC_HCA").unwrap_or_default();
    let stream = UnixStream::connect(socket)?;
    let mut open = Record::new(OPEN);
    // The last byte remains 0.
    for (to, from) in open.mad_mut()[..MAD - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    open.send(&stream)?;
    let answer = Record::receive(&stream)?;
    if answer.status() != 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok((stream, answer))
}

/// Returns whether a name from a program is null, empty or that of the HCA.
///
/// # Safety
///
/// `name` is null or a C string.
unsafe fn is_hca(name: *const c_char) -> bool {
    // SAFETY: as the caller says.
    name.is_null()
        || unsafe { CStr::from_ptr(name) }.is_empty()
        || unsafe { CStr::from_ptr(name) } == HCA
}

fn text<const N: usize>(text: &[u8]) -> [u8; N] {
    // The last byte remains 0.
    std::array::from_fn(|index| {
        if index + 1 < N {
            text.get(index).copied().unwrap_or(0)
        } else {
            0
        }
    })
}

/// Returns the description of the port for a program. Its partition table is allocated with malloc.
fn describe(answer: &Record) -> UmadPort {
    let mad = answer.mad();
    let (info, node) = (PortInfo::read(mad), NodeInfo::read(&mad[64..]));
    let keys = PKeyTable::read(&mad[128..]).keys;
    let mut rate = [0; 8];
    rate.copy_from_slice(&mad[192..200]);
    // SAFETY: malloc has no preconditions; the result is checked, and has room for the table.
    let pkeys = unsafe {
        let pkeys = libc::malloc(size_of_val(&keys)).cast::<u16>();
        if !pkeys.is_null() {
            ptr::copy_nonoverlapping(keys.as_ptr(), pkeys, keys.len());
        }
        pkeys
    };
    UmadPort {
        ca_name: text(HCA.to_bytes()),
        portnum: 1,
        base_lid: info.lid.into(),
        lmc: info.lmc.into(),
        sm_lid: info.sm_lid.into(),
        sm_sl: info.sm_sl.into(),
        state: info.state.0.into(),
        phys_state: info.physical_state.0.into(),
        rate: (u64::from_ne_bytes(rate) / 1_000_000_000) as c_uint,
        capmask: info.capability_mask.to_be(),
        gid_prefix: info.gid_prefix.to_be(),
        port_guid: node.port_guid.to_be(),
        pkeys_size: if pkeys.is_null() {
            0
        } else {
            keys.len() as c_uint
        },
        pkeys,
        link_layer: text(b"InfiniBand"),
    }
}

/// `umad_init(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_init() -> c_int {
    0
}

/// `umad_init(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_done() -> c_int {
    0
}

/// `umad_get_cas_names(3)`.
///
/// # Safety
///
/// `cas` has room for `max` names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_cas_names(cas: *mut [u8; NAME], max: c_int) -> c_int {
    if cas.is_null() || max < 1 {
        return 0;
    }
    // SAFETY: there is room for one.
    unsafe { cas.write(text(HCA.to_bytes())) };
    1
}

/// `umad_get_ca_device_list(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_get_ca_device_list() -> *mut UmadDeviceNode {
    Box::into_raw(Box::new(UmadDeviceNode {
        next: ptr::null_mut(),
        ca_name: HCA.as_ptr(),
    }))
}

/// `umad_free_ca_device_list(3)`.
///
/// # Safety
///
/// `head` is null or from [`umad_get_ca_device_list`], and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_free_ca_device_list(head: *mut UmadDeviceNode) {
    if !head.is_null() {
        // SAFETY: it was a Box.
        drop(unsafe { Box::from_raw(head) });
    }
}

/// `umad_get_ca_portguids(3)`. The first entry is for port 0, which HCAs do not have.
///
/// # Safety
///
/// `ca_name` is null or a string, `guids` null or an array of `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    guids: *mut u64,
    max: c_int,
) -> c_int {
    // SAFETY: as the caller says.
    if !unsafe { is_hca(ca_name) } {
        return fail(libc::ENODEV);
    }
    if guids.is_null() {
        return 0;
    }
    if max < 2 {
        return fail(libc::ENOMEM);
    }
    let Ok((_, answer)) = connect() else {
        return fail(libc::ENODEV);
    };
    let guid = NodeInfo::read(&answer.mad()[64..]).port_guid;
    // SAFETY: there is room for two.
    unsafe {
        guids.write(0);
        guids.add(1).write(guid.to_be());
    }
    2
}

/// `umad_get_port(3)`.
///
/// # Safety
///
/// `ca_name` is null or a string, `port` null or good for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut UmadPort,
) -> c_int {
    // SAFETY: as the caller says.
    if port.is_null() || !(0..=1).contains(&portnum) || !unsafe { is_hca(ca_name) } {
        return fail(libc::ENODEV);
    }
    let Ok((_, answer)) = connect() else {
        return fail(libc::ENODEV);
    };
    // SAFETY: it is good for writing.
    unsafe { port.write(describe(&answer)) };
    0
}

/// `umad_release_port(3)`.
///
/// # Safety
///
/// `port` is null or was filled by [`umad_get_port`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_release_port(port: *mut UmadPort) -> c_int {
    if !port.is_null() {
        // SAFETY: the table is malloc's, or null.
        unsafe {
            libc::free((*port).pkeys.cast());
            (*port).pkeys = ptr::null_mut();
        }
    }
    0
}

/// `umad_get_ca(3)`.
///
/// # Safety
///
/// `ca_name` is null or a string, `ca` null or good for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut UmadCa) -> c_int {
    // SAFETY: as the caller says.
    if ca.is_null() || !unsafe { is_hca(ca_name) } {
        return fail(libc::ENODEV);
    }
    let Ok((_, answer)) = connect() else {
        return fail(libc::ENODEV);
    };
    let node = NodeInfo::read(&answer.mad()[64..]);
    let mut ports = [ptr::null_mut(); PORTS];
    ports[1] = Box::into_raw(Box::new(describe(&answer)));
    // SAFETY: it is good for writing.
    unsafe {
        ca.write(UmadCa {
            ca_name: text(HCA.to_bytes()),
            node_type: 1,
            numports: 1,
            fw_ver: text(env!("CARGO_PKG_VERSION").as_bytes()),
            ca_type: text(b"vrnic"),
            hw_ver: text(b"1"),
            node_guid: node.node_guid.to_be(),
            system_guid: node.system_guid.to_be(),
            ports,
        });
    }
    0
}

/// `umad_release_ca(3)`.
///
/// # Safety
///
/// `ca` is null or was filled by [`umad_get_ca`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_release_ca(ca: *mut UmadCa) -> c_int {
    if ca.is_null() {
        return 0;
    }
    // SAFETY: each port was a Box, or is null.
    unsafe {
        for port in &mut (*ca).ports {
            if !port.is_null() {
                umad_release_port(*port);
                drop(Box::from_raw(*port));
                *port = ptr::null_mut();
            }
        }
    }
    0
}

/// `umad_get_issm_path(3)`. A subnet manager opens this file to announce itself. That has no effect here, because the
/// subnet recognizes a manager by its agents.
///
/// # Safety
///
/// `path` has room for `max` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_issm_path(
    _: *const c_char,
    _: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    let none = c"/dev/null".to_bytes_with_nul();
    if path.is_null() || usize::try_from(max).is_ok_and(|max| max < none.len()) || max < 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: there is room.
    unsafe { ptr::copy_nonoverlapping(none.as_ptr(), path.cast(), none.len()) };
    0
}

/// `umad_open_port(3)`.
///
/// # Safety
///
/// `ca_name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_open_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: as the caller says.
    if !(0..=1).contains(&portnum) || !unsafe { is_hca(ca_name) } {
        return fail(libc::ENODEV);
    }
    let Ok((stream, _)) = connect() else {
        return fail(libc::EIO);
    };
    let portid = stream.as_raw_fd();
    let port = Port {
        stream,
        next_agent: AtomicU32::new(0),
        long: Mutex::default(),
        writing: Mutex::new(()),
        reading: Mutex::new(()),
    };
    lock(&OPEN_PORTS).insert(portid, Arc::new(port));
    portid
}

/// `umad_open_smi_port(3)`.
///
/// # Safety
///
/// As [`umad_open_port`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_open_smi_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe { umad_open_port(ca_name, portnum) }
}

/// `umad_close_port(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_close_port(portid: c_int) -> c_int {
    match lock(&OPEN_PORTS).remove(&portid) {
        Some(_) => 0,
        None => fail(libc::EINVAL),
    }
}

/// `umad_get_fd(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_get_fd(portid: c_int) -> c_int {
    if port_of(portid).is_some() {
        portid
    } else {
        fail(libc::EINVAL)
    }
}

/// Properties of an agent.
#[derive(Debug, Default)]
struct Registration {
    class: u8,
    version: u8,
    rmpp: u8,
    flags: u8,
    oui: [u8; 3],
    methods: [u8; 16],
}

/// Registers an agent with the subnet, and returns its number.
fn register(portid: c_int, wanted: &Registration) -> c_int {
    let Some(port) = port_of(portid) else {
        return fail(libc::EINVAL);
    };
    let agent = port.next_agent.fetch_add(1, Ordering::Relaxed);
    if wanted.rmpp != 0 && wanted.flags & USER_RMPP == 0 {
        lock(&port.long).insert(agent);
    }
    let mut record = Record::new(REGISTER);
    record.set_agent(agent);
    let mad = record.mad_mut();
    mad[..4].copy_from_slice(&[wanted.class, wanted.version, wanted.rmpp, wanted.flags]);
    mad[4..7].copy_from_slice(&wanted.oui);
    mad[8..24].copy_from_slice(&wanted.methods);
    let _writing = lock(&port.writing);
    match record.send(&port.stream) {
        Ok(()) => agent.cast_signed(),
        Err(_) => fail(libc::EIO),
    }
}

/// Reads a mask of methods.
///
/// # Safety
///
/// `mask` is null, which stands for an empty mask, or has 128 bits.
unsafe fn methods(mask: *const c_void) -> [u8; 16] {
    if mask.is_null() {
        return [0; 16];
    }
    // SAFETY: It has 16 bytes, which need not be aligned.
    unsafe { mask.cast::<[u8; 16]>().read_unaligned() }
}

/// `umad_register(3)`.
///
/// # Safety
///
/// `mask` is null or has 128 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register(
    portid: c_int,
    class: c_int,
    version: c_int,
    rmpp: u8,
    mask: *const c_long,
) -> c_int {
    let wanted = Registration {
        class: u8::try_from(class).unwrap_or(0),
        version: u8::try_from(version).unwrap_or(0),
        rmpp,
        // SAFETY: as the caller says.
        methods: unsafe { methods(mask.cast()) },
        ..Registration::default()
    };
    register(portid, &wanted)
}

/// `umad_register_oui(3)`.
///
/// # Safety
///
/// As [`umad_register`]; `oui` has three bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register_oui(
    portid: c_int,
    class: c_int,
    rmpp: u8,
    oui: *const [u8; 3],
    mask: *const c_long,
) -> c_int {
    if oui.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    let (oui, methods) = unsafe { (*oui, methods(mask.cast())) };
    let wanted = Registration {
        class: u8::try_from(class).unwrap_or(0),
        version: 1,
        rmpp,
        oui,
        methods,
        ..Registration::default()
    };
    register(portid, &wanted)
}

/// `umad_register2(3)`.
///
/// # Safety
///
/// `attributes` and `agent` are null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_register2(
    portid: c_int,
    attributes: *const UmadRegAttr,
    agent: *mut u32,
) -> c_int {
    if attributes.is_null() || agent.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: they are good.
    let wanted = unsafe {
        let [_, oui @ ..] = (*attributes).oui.to_be_bytes();
        Registration {
            class: (*attributes).mgmt_class,
            version: (*attributes).mgmt_class_version,
            rmpp: (*attributes).rmpp_version,
            flags: (*attributes).flags as u8,
            oui,
            methods: methods((&raw const (*attributes).method_mask).cast()),
        }
    };
    let number = register(portid, &wanted);
    if number < 0 {
        return -number;
    }
    // SAFETY: it is good.
    unsafe { agent.write(number.cast_unsigned()) };
    0
}

/// `umad_unregister(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_unregister(portid: c_int, agent: c_int) -> c_int {
    let Some(port) = port_of(portid) else {
        return fail(libc::EINVAL);
    };
    let mut record = Record::new(UNREGISTER);
    record.set_agent(agent.cast_unsigned());
    let _writing = lock(&port.writing);
    match record.send(&port.stream) {
        Ok(()) => 0,
        Err(_) => fail(libc::EIO),
    }
}

/// `umad_send(3)`.
///
/// # Safety
///
/// `umad` is null or a buffer with a header and `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_send(
    portid: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout: c_int,
    retries: c_int,
) -> c_int {
    let Some(port) = port_of(portid).filter(|_| !umad.is_null()) else {
        return fail(libc::EINVAL);
    };
    let long = lock(&port.long).contains(&agent.cast_unsigned());
    let limit = if long { MAX_MESSAGE } else { MAD };
    let Some(length) = usize::try_from(length)
        .ok()
        .filter(|length| *length <= limit)
    else {
        return fail(libc::EINVAL);
    };
    // SAFETY: the buffer has that much.
    let (header, message) = unsafe {
        let header = umad.cast::<[u8; HEADER]>().read_unaligned();
        (
            header,
            std::slice::from_raw_parts(umad.cast::<u8>().add(HEADER), length),
        )
    };
    let mut record = Record::packet(header, message);
    record.set_agent(agent.cast_unsigned());
    record.set_status(0);
    record.set_timeout(timeout.max(0).cast_unsigned());
    record.set_retries(retries.max(0).cast_unsigned());
    let _writing = lock(&port.writing);
    match record.send(&port.stream) {
        Ok(()) => 0,
        Err(_) => fail(libc::EIO),
    }
}

/// Waits until there is a record to receive.
fn wait(port: &Port, timeout: c_int) -> c_int {
    let mut poll = libc::pollfd {
        fd: port.stream.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: it is one, and the descriptor is open as long as the port is.
    match unsafe { libc::poll(&raw mut poll, 1, timeout) } {
        1 => 0,
        0 => fail(libc::ETIMEDOUT),
        _ => -libc::EIO,
    }
}

/// Returns the beginning of the next record, which stays in the socket.
fn peek(port: &Port) -> io::Result<Record> {
    let mut bytes = [0; LENGTH];
    loop {
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        let fd = port.stream.as_raw_fd();
        // SAFETY: the descriptor is open as long as the port is, and there is room for that much.
        let peeked = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), LENGTH, flags) };
        match usize::try_from(peeked) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(LENGTH) => return Ok(Record::beginning(bytes)),
            // The rest has not arrived yet.
            Ok(_) => std::thread::yield_now(),
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
}

/// `umad_poll(3)`.
#[unsafe(no_mangle)]
pub extern "C" fn umad_poll(portid: c_int, timeout: c_int) -> c_int {
    match port_of(portid) {
        Some(port) => wait(&port, timeout),
        None => fail(libc::EINVAL),
    }
}

/// `umad_recv(3)`. If there is no room for the message, sets `*length` to the length that it needs.
///
/// # Safety
///
/// `umad` is null or has room for a header and `*length` bytes; `length` is null or good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_recv(
    portid: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout: c_int,
) -> c_int {
    let Some(port) = port_of(portid).filter(|_| !umad.is_null() && !length.is_null()) else {
        return fail(libc::EINVAL);
    };
    // SAFETY: it is good.
    if unsafe { *length } < MAD_LENGTH {
        return fail(libc::EINVAL);
    }
    let _reading = lock(&port.reading);
    let ready = wait(&port, timeout);
    if ready < 0 {
        return if timeout == 0 {
            fail(libc::EWOULDBLOCK)
        } else {
            ready
        };
    }
    let Ok(mut record) = peek(&port) else {
        return fail(libc::EIO);
    };
    // SAFETY: it is good.
    let room = usize::try_from(unsafe { *length }).unwrap_or(0);
    let fits = record.message_length() <= room;
    if fits {
        match Record::receive(&port.stream) {
            Ok(whole) => record = whole,
            Err(_) => return fail(libc::EIO),
        }
    }
    // A message that does not fit stays in the socket. The program gets its first MAD and its length.
    let message = record.message();
    // SAFETY: there is room for a header and a MAD, or for the whole message.
    unsafe {
        umad.cast::<[u8; HEADER]>().write_unaligned(record.header());
        let to = umad.cast::<u8>().add(HEADER);
        ptr::copy_nonoverlapping(message.as_ptr(), to, message.len());
        *length = (record.message_length() as u32).cast_signed();
    }
    if fits {
        record.agent().cast_signed()
    } else {
        fail(libc::ENOSPC)
    }
}

/// `umad_size(3)`. The size in libibumad depends on the kernel, which is not used here.
#[unsafe(no_mangle)]
pub extern "C" fn umad_size() -> usize {
    HEADER
}

/// `umad_get_mad(3)`.
///
/// # Safety
///
/// `umad` is a buffer with a header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    // SAFETY: the MAD is behind the header.
    unsafe { umad.byte_add(HEADER) }
}

/// Offset of the index of the partition key in the header.
const PKEY_INDEX: usize = 56;

/// `umad_set_pkey(3)`.
///
/// # Safety
///
/// `umad` is a buffer with a header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    let index = u16::try_from(index).unwrap_or(0);
    // SAFETY: it is within the header.
    unsafe {
        umad.byte_add(PKEY_INDEX)
            .cast::<u16>()
            .write_unaligned(index);
    };
    0
}

/// `umad_get_pkey(3)`.
///
/// # Safety
///
/// `umad` is a buffer with a header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: it is within the header.
    unsafe { umad.byte_add(PKEY_INDEX).cast::<u16>().read_unaligned() }.into()
}
