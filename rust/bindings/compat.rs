// SPDX-License-Identifier: GPL-2.0

//! Items of the `kernel` crate that the abstractions need but that are private to it.
//!
//! In the kernel tree each of these is a `pub(crate)` item of the same name; here it is rebuilt
//! from public items. Nothing else in the abstractions depends on being out of tree.

use kernel::{
    bindings,
    device::{
        CoreInternal,
        Device,
        DeviceContext, //
    },
    io::resource::Resource,
    prelude::*,
    time::Jiffies,
    types::{
        ForeignOwnable,
        Opaque, //
    }, //
};

/// `device::Device::as_raw`: returns the `struct device` of a device.
pub fn device_as_raw<Ctx: DeviceContext>(dev: &Device<Ctx>) -> *mut bindings::device {
    // CAST: `Device` is a transparent wrapper of `Opaque<bindings::device>`, which permits mutation
    // through a shared reference.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// `device::Device::drvdata_obtain`: takes the driver's private data out of its device.
///
/// # Safety
///
/// `T` must be the type given to [`Device::set_drvdata`], if that was called.
pub unsafe fn drvdata_obtain<T>(dev: &Device<CoreInternal<'_>>) -> Option<Pin<KBox<T>>> {
    let raw = device_as_raw(dev);

    // SAFETY: `dev` is a valid device, hence so is `raw`.
    let ptr = unsafe { bindings::dev_get_drvdata(raw) };
    // SAFETY: The device is valid, and nobody else uses its data any more.
    unsafe { bindings::dev_set_drvdata(raw, core::ptr::null_mut()) };

    if ptr.is_null() {
        return None;
    }
    // SAFETY: A pointer that is not NULL was stored by `set_drvdata`, which got it from
    // `into_foreign` of a `Pin<KBox<T>>`. It has been removed above, so nothing else can take it.
    Some(unsafe { Pin::<KBox<T>>::from_foreign(ptr.cast()) })
}

/// `io::resource::Resource::from_raw`: borrows a C resource.
///
/// # Safety
///
/// The resource must be valid during `'a`.
pub unsafe fn resource_from_raw<'a>(resource: *mut bindings::resource) -> &'a Resource {
    // SAFETY: Guaranteed by the caller; `Resource` is a transparent wrapper of the C structure.
    unsafe { &*resource.cast() }
}

/// `alloc::Flags::as_raw`: returns allocation flags for C functions.
pub fn gfp_as_raw(flags: kernel::alloc::Flags) -> bindings::gfp_t {
    const {
        assert!(size_of::<kernel::alloc::Flags>() == size_of::<bindings::gfp_t>());
    }
    // SAFETY: `Flags` is a newtype of `u32`, the representation of `gfp_t`.
    unsafe { core::mem::transmute(flags) }
}

/// Returns the member of a union.
///
/// In the kernel tree bindgen generates Rust unions. Here it does not know enough about the
/// kernel's types, and generates equivalent structures.
///
/// # Safety
///
/// The member must be valid.
pub unsafe fn member<T>(field: &crate::__BindgenUnionField<T>) -> &T {
    // SAFETY: Guaranteed by the caller.
    unsafe { field.as_ref() }
}

/// Like [`member`], but mutable.
///
/// # Safety
///
/// As for [`member`].
pub unsafe fn member_mut<T>(field: &mut crate::__BindgenUnionField<T>) -> &mut T {
    // SAFETY: Guaranteed by the caller.
    unsafe { field.as_mut() }
}

/// `sync::Completion` with a timeout, which the kernel's type lacks.
///
/// C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: `Completion` is safe to be sent to any task.
unsafe impl Send for Completion {}

// SAFETY: `Completion` is safe to be accessed concurrently.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates an initialiser for a new [`Completion`].
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is a valid pointer to an uninitialised completion.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Signals all current and future waiters. May be called in any context.
    pub fn complete_all(&self) {
        // SAFETY: `inner` was initialised by `new`.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Signals one current or future waiter. May be called in any context.
    pub fn complete(&self) {
        // SAFETY: `inner` was initialised by `new`.
        unsafe { bindings::complete(self.inner.get()) };
    }

    /// Waits uninterruptibly for [`complete_all`](Self::complete_all), or for a
    /// [`complete`](Self::complete) of its own.
    pub fn wait_for_completion(&self) {
        // SAFETY: `inner` was initialised by `new`.
        unsafe { bindings::wait_for_completion(self.inner.get()) };
    }

    /// Like [`wait_for_completion`](Self::wait_for_completion), with a timeout. Returns whether the
    /// wait succeeded.
    pub fn wait_for_completion_timeout(&self, timeout: Jiffies) -> bool {
        // SAFETY: `inner` was initialised by `new`.
        unsafe { bindings::wait_for_completion_timeout(self.inner.get(), timeout) != 0 }
    }
}
