// SPDX-License-Identifier: GPL-2.0

//! Bindings for RDMA and virtio that the kernel's own `bindings` crate lacks.
//!
//! The abstractions (`rust/rdma`, `rust/virtio`) are written as if they were in `rust/kernel/` and
//! refer to C items through one module, `bindings`. In the kernel tree that module is the kernel's.
//! Out of tree it is this crate, which adds a bindgen run of its own and takes all other types from
//! the kernel, so that a `struct device` is the same type on both sides.
//!
//! Nothing else may use this crate; drivers use only the abstractions.

use kernel::prelude::static_assert;

pub mod compat;
pub mod device_memory;
pub mod gate;
pub mod workqueue;

/// Sizes and offsets according to the kernel's C compiler (`layout.c`).
#[allow(dead_code, missing_docs, unreachable_pub)]
mod layout {
    include!(concat!(
        env!("VRNIC_OBJTREE"),
        "/rust/bindings/layout_bindings_generated.rs"
    ));
}

#[cfg_attr(not(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES), allow(unknown_lints))]
#[allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unnecessary_transmutes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]
mod bindings_raw {
    use kernel::ffi;
    use pin_init::{
        MaybeZeroable,
        Zeroable, //
    };

    // Items defined in this module take precedence over these.
    pub use kernel::bindings::*;

    // SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`.
    unsafe impl<Storage: Zeroable> Zeroable for __BindgenBitfieldUnit<Storage> {}

    // SAFETY: The member of a union has no bytes here; they are in another field.
    unsafe impl<T> Zeroable for __BindgenUnionField<T> {}

    include!(concat!(
        env!("VRNIC_OBJTREE"),
        "/rust/bindings/bindings_generated.rs"
    ));
}

#[allow(clippy::all, dead_code, improper_ctypes, missing_docs, unreachable_pub)]
mod bindings_helper {
    use super::bindings_raw::*;
    use kernel::ffi;

    include!(concat!(
        env!("VRNIC_OBJTREE"),
        "/rust/bindings/helpers_generated.rs"
    ));
}

pub use bindings_helper::*;
pub use bindings_raw::*;

/// Asserts that bindgen and the C compiler agree on the size of each structure.
macro_rules! assert_sizes {
    ($($ty:ident == $size:ident,)*) => {
        $(static_assert!(size_of::<bindings_raw::$ty>() == layout::$size);)*
    };
}

/// Asserts that bindgen and the C compiler agree on the offset of each member.
macro_rules! assert_offsets {
    ($($ty:ident . $($member:ident).+ == $offset:ident,)*) => {
        $(static_assert!(
            core::mem::offset_of!(bindings_raw::$ty, $($member).+) == layout::$offset
        );)*
    };
}

assert_sizes! {
    ib_ah == SIZEOF_IB_AH,
    ib_cq == SIZEOF_IB_CQ,
    ib_device == SIZEOF_IB_DEVICE,
    ib_device_ops == SIZEOF_IB_DEVICE_OPS,
    ib_dm == SIZEOF_IB_DM,
    ib_mr == SIZEOF_IB_MR,
    ib_mw == SIZEOF_IB_MW,
    ib_pd == SIZEOF_IB_PD,
    ib_qp == SIZEOF_IB_QP,
    ib_srq == SIZEOF_IB_SRQ,
    ib_ucontext == SIZEOF_IB_UCONTEXT,
    ib_umem == SIZEOF_IB_UMEM,
    ib_umem_odp == SIZEOF_IB_UMEM_ODP,
    ib_port_attr == SIZEOF_IB_PORT_ATTR,
    ib_device_attr == SIZEOF_IB_DEVICE_ATTR,
    ib_qp_attr == SIZEOF_IB_QP_ATTR,
    ib_qp_init_attr == SIZEOF_IB_QP_INIT_ATTR,
    ib_wc == SIZEOF_IB_WC,
    ib_send_wr == SIZEOF_IB_SEND_WR,
    ib_reg_wr == SIZEOF_IB_REG_WR,
    ib_recv_wr == SIZEOF_IB_RECV_WR,
    ib_block_iter == SIZEOF_IB_BLOCK_ITER,
    rdma_ah_attr == SIZEOF_RDMA_AH_ATTR,
    rdma_user_mmap_entry == SIZEOF_RDMA_USER_MMAP_ENTRY,
    uapi_definition == SIZEOF_UAPI_DEFINITION,
    uverbs_attr_bundle == SIZEOF_UVERBS_ATTR_BUNDLE,
    uverbs_attr_def == SIZEOF_UVERBS_ATTR_DEF,
    uverbs_attr_spec == SIZEOF_UVERBS_ATTR_SPEC,
    uverbs_method_def == SIZEOF_UVERBS_METHOD_DEF,
    uverbs_object_def == SIZEOF_UVERBS_OBJECT_DEF,
    virtio_device == SIZEOF_VIRTIO_DEVICE,
    virtio_driver == SIZEOF_VIRTIO_DRIVER,
    virtio_config_ops == SIZEOF_VIRTIO_CONFIG_OPS,
    virtqueue == SIZEOF_VIRTQUEUE,
}

assert_offsets! {
    ib_device.ops == OFFSETOF_IB_DEVICE_OPS,
    ib_device.__bindgen_anon_1 == OFFSETOF_IB_DEVICE_DEV,
    ib_device.attrs == OFFSETOF_IB_DEVICE_ATTRS,
    ib_device.phys_port_cnt == OFFSETOF_IB_DEVICE_PHYS_PORT_CNT,
    ib_device.num_comp_vectors == OFFSETOF_IB_DEVICE_NUM_COMP_VECTORS,
    ib_cq.comp_handler == OFFSETOF_IB_CQ_COMP_HANDLER,
    ib_qp.qp_num == OFFSETOF_IB_QP_QP_NUM,
    ib_qp.event_handler == OFFSETOF_IB_QP_EVENT_HANDLER,
    ib_mr.lkey == OFFSETOF_IB_MR_LKEY,
    ib_umem.sgt_append == OFFSETOF_IB_UMEM_SGT_APPEND,
    ib_umem_odp.map == OFFSETOF_IB_UMEM_ODP_MAP,
    ib_umem_odp.notifier == OFFSETOF_IB_UMEM_ODP_NOTIFIER,
    ib_umem_odp.umem_mutex == OFFSETOF_IB_UMEM_ODP_UMEM_MUTEX,
    virtio_device.dev == OFFSETOF_VIRTIO_DEVICE_DEV,
    virtio_device.priv_ == OFFSETOF_VIRTIO_DEVICE_PRIV,
    virtio_device.config == OFFSETOF_VIRTIO_DEVICE_CONFIG,
    virtio_driver.probe == OFFSETOF_VIRTIO_DRIVER_PROBE,
    virtqueue.index == OFFSETOF_VIRTQUEUE_INDEX,
    virtqueue.vdev == OFFSETOF_VIRTQUEUE_VDEV,
}
