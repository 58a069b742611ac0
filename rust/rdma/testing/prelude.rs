// SPDX-License-Identifier: GPL-2.0

//! Names that most tests use.

pub(crate) use core::{
    ptr::{
        self,
        null_mut,
        NonNull, //
    },
    sync::atomic::Ordering::SeqCst, //
};

pub(crate) use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::{
        atomic::{
            ordering::{
                Acquire,
                Full,
                Relaxed, //
            },
            Atomic, //
        },
        Arc, //
    },
    task::Task,
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue, //
};

pub(crate) use crate::{
    access::{
        Access,
        AccessFlags, //
    },
    ah::{
        self,
        RawPath, //
    },
    bindings,
    counter,
    cq::{
        CqFlag,
        CqFlags,
        CqInitAttr, //
    },
    device::{
        Atomicity,
        Capability,
        Device,
        DeviceAttr,
        OnDemandPaging,
        Properties,
        UnregisteredDevice, //
    },
    dm,
    event::{
        Completes,
        CqEvent,
        Dispatcher,
        InUse,
        NewPlace,
        Notice,
        Numbered,
        Objects,
        Order,
        Place,
        PortEvent,
        Poster,
        QpEvent,
        SrqEvent,
        WorkQueue, //
    },
    gid::{
        self,
        Gid,
        GidAttr, //
    },
    mmap::UserPages,
    mr::{
        self,
        Mapping, //
    },
    mw,
    port::{
        self,
        LinkLayer,
        Mtu,
        Port,
        PortChange,
        Protocol, //
    },
    qp::{
        self,
        Attribute,
        AttributeMask,
        QpAttr,
        QpCap,
        State,
        Type, //
    },
    srq::{
        SrqAttr, //
        SrqChange,
    },
    wc::{
        Completion,
        Completions,
        Extra,
        NetworkHeader,
        Opcode,
        Source,
        Status, //
    },
    wr::{
        Continuation,
        Operation,
        ReceiveRequests,
        SendFlag,
        SendRequests, //
    },
    Ah,
    Cq,
    Mr,
    Mw,
    Netdev,
    Pd,
    Qp,
    Srq, //
};

pub(crate) use super::driver::{
    keys,
    port_attributes,
    port_link_layer,
    with_device,
    Asked,
    Log,
    Object,
    Offsets,
    TestDriver,
    CAPABILITIES,
    DEVICE_MEMORY,
    DEVICE_PAGES,
    FIRMWARE,
    GIDS,
    MAC,
    MACS,
    MAPPABLE,
    MAPPABLE_BUT_REFUSED,
    PORTS,
    PROPERTIES,
    SHARED_PAGES,
    VECTORS, //
};
pub(crate) use super::{
    device::{
        DeviceEvents,
        Ethernet, //
    },
    objects::{
        boxed,
        fills,
        new_shared,
        path,
        room,
        second_port,
        verb,
        CoreMemory,
        Domain,
        Pair,
        Queue, //
    },
    process::{
        Process,
        ProcessMemory,
        UserCall, //
    },
    wait_until, //
};
