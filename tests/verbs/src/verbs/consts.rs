// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Constants of `<infiniband/verbs.h>`, with the prefix `IBV_` left out.
#![allow(missing_docs)]

macro_rules! named {
    ($(#[$doc:meta])* $lookup:ident: $($name:ident = $value:expr),* $(,)?) => {
        $(pub const $name: i32 = $value;)*
        $(#[$doc])*
        #[must_use]
        pub fn $lookup(value: i32) -> String {
            match value {
                $($value => stringify!($name).to_owned(),)*
                other => format!("{other}?"),
            }
        }
    };
}

named! {
    /// Name of a work completion status.
    status_name:
    WC_SUCCESS = 0, WC_LOC_LEN_ERR = 1, WC_LOC_QP_OP_ERR = 2, WC_LOC_PROT_ERR = 4, WC_WR_FLUSH_ERR = 5,
    WC_MW_BIND_ERR = 6, WC_BAD_RESP_ERR = 7, WC_LOC_ACCESS_ERR = 8, WC_REM_INV_REQ_ERR = 9, WC_REM_ACCESS_ERR = 10,
    WC_REM_OP_ERR = 11, WC_RETRY_EXC_ERR = 12, WC_RNR_RETRY_EXC_ERR = 13, WC_REM_ABORT_ERR = 16,
    WC_FATAL_ERR = 19, WC_GENERAL_ERR = 21,
}

named! {
    /// Name of a work completion opcode.
    opcode_name:
    WC_SEND = 0, WC_RDMA_WRITE = 1, WC_RDMA_READ = 2, WC_COMP_SWAP = 3, WC_FETCH_ADD = 4, WC_BIND_MW = 5,
    WC_LOCAL_INV = 6, WC_FLUSH = 8, WC_ATOMIC_WRITE = 9, WC_RECV = 128, WC_RECV_RDMA_WITH_IMM = 129,
}

named! {
    /// Name of an async event.
    event_name:
    EVENT_CQ_ERR = 0, EVENT_QP_FATAL = 1, EVENT_QP_REQ_ERR = 2, EVENT_QP_ACCESS_ERR = 3, EVENT_COMM_EST = 4,
    EVENT_SQ_DRAINED = 5, EVENT_PATH_MIG = 6, EVENT_PATH_MIG_ERR = 7, EVENT_DEVICE_FATAL = 8, EVENT_PORT_ACTIVE = 9,
    EVENT_PORT_ERR = 10, EVENT_LID_CHANGE = 11, EVENT_PKEY_CHANGE = 12, EVENT_SM_CHANGE = 13, EVENT_SRQ_ERR = 14,
    EVENT_SRQ_LIMIT_REACHED = 15, EVENT_QP_LAST_WQE_REACHED = 16, EVENT_CLIENT_REREGISTER = 17, EVENT_GID_CHANGE = 18,
}

named! {
    /// Name of a QP state.
    state_name:
    QPS_RESET = 0, QPS_INIT = 1, QPS_RTR = 2, QPS_RTS = 3, QPS_SQD = 4, QPS_SQE = 5, QPS_ERR = 6,
}

pub const WC_GRH: u32 = 1;
pub const WC_WITH_IMM: u32 = 2;
pub const WC_WITH_INV: u32 = 8;

pub const QPT_RC: i32 = 2;
pub const QPT_UC: i32 = 3;
pub const QPT_UD: i32 = 4;
/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`
pub const QP_CREATE_BLOCK_SELF_MCAST_LB: u32 = 1 << 1;
pub const QPT_RAW_PACKET: i32 = 8;
pub const QPT_XRC_RECV: i32 = 10;
pub const QPT_DRIVER: i32 = 0xff;

pub const ACCESS_LOCAL_WRITE: i32 = 1;
pub const ACCESS_REMOTE_WRITE: i32 = 2;
pub const ACCESS_REMOTE_READ: i32 = 4;
pub const ACCESS_REMOTE_ATOMIC: i32 = 8;
pub const ACCESS_MW_BIND: i32 = 1 << 4;
pub const ACCESS_ZERO_BASED: i32 = 1 << 5;
pub const ACCESS_ON_DEMAND: i32 = 1 << 6;
pub const ACCESS_FLUSH_GLOBAL: i32 = 1 << 8;
/// Every right to a region's bytes by plain operations.
pub const ACCESS_ALL: i32 = 15;

pub const QP_STATE: i32 = 1;
pub const QP_CUR_STATE: i32 = 1 << 1;
pub const QP_EN_SQD_ASYNC_NOTIFY: i32 = 1 << 2;
pub const QP_ACCESS_FLAGS: i32 = 1 << 3;
pub const QP_PKEY_INDEX: i32 = 1 << 4;
pub const QP_PORT: i32 = 1 << 5;
pub const QP_QKEY: i32 = 1 << 6;
pub const QP_AV: i32 = 1 << 7;
pub const QP_PATH_MTU: i32 = 1 << 8;
pub const QP_TIMEOUT: i32 = 1 << 9;
pub const QP_RETRY_CNT: i32 = 1 << 10;
pub const QP_RNR_RETRY: i32 = 1 << 11;
pub const QP_RQ_PSN: i32 = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: i32 = 1 << 13;
pub const QP_ALT_PATH: i32 = 1 << 14;
pub const QP_MIN_RNR_TIMER: i32 = 1 << 15;
pub const QP_SQ_PSN: i32 = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
pub const QP_PATH_MIG_STATE: i32 = 1 << 18;
pub const QP_CAP: i32 = 1 << 19;
pub const QP_DEST_QPN: i32 = 1 << 20;
pub const QP_RATE_LIMIT: i32 = 1 << 25;

pub const WR_RDMA_WRITE: i32 = 0;
pub const WR_RDMA_WRITE_WITH_IMM: i32 = 1;
pub const WR_SEND: i32 = 2;
pub const WR_SEND_WITH_IMM: i32 = 3;
pub const WR_RDMA_READ: i32 = 4;
pub const WR_ATOMIC_CMP_AND_SWP: i32 = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: i32 = 6;
pub const WR_LOCAL_INV: i32 = 7;
pub const WR_BIND_MW: i32 = 8;
pub const WR_SEND_WITH_INV: i32 = 9;
pub const WR_FLUSH: i32 = 14;
pub const WR_ATOMIC_WRITE: i32 = 15;

pub const QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
pub const QP_EX_WITH_BIND_MW: u64 = 1 << 8;
pub const QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;
pub const QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub const QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

pub const DEVICE_MANAGED_FLOW_STEERING: u32 = 1 << 29;
pub const DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub const DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

pub const FLUSH_GLOBAL: u8 = 1;
pub const FLUSH_RANGE: u8 = 0;
pub const FLUSH_MR: u8 = 1;

pub const MW_TYPE_1: i32 = 1;
pub const MW_TYPE_2: i32 = 2;

pub const REREG_TRANSLATION: i32 = 1;
pub const REREG_PD: i32 = 1 << 1;
pub const REREG_ACCESS: i32 = 1 << 2;

pub const SEND_FENCE: u32 = 1;
pub const SEND_SIGNALED: u32 = 2;
pub const SEND_SOLICITED: u32 = 4;
pub const SEND_INLINE: u32 = 8;

/// Bytes of a path MTU enumerator (`IBV_MTU_256` is 1).
#[must_use]
pub const fn mtu_bytes(mtu: i32) -> usize {
    128 << mtu
}
