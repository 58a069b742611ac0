// SPDX-License-Identifier: GPL-2.0

//! Address handles and paths.

use kernel::prelude::*;

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    gid::Gid,
    object::{
        blank,
        core_object,
        Sole,
        Vacant, //
    },
    port::Port,
    udata::{
        caller,
        Caller,
        Request,
        Response,
        User, //
    },
    verb::Verb, //
};

/// The route of a packet as given in an IP header or a GRH (`struct ib_global_route`; IBTA volume
/// 1, section 8.3).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// GID of the destination.
    pub dgid: Gid,
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

impl GlobalRoute {
    /// Converts the route of a path from C, if the path has one.
    fn from_raw(raw: &bindings::rdma_ah_attr) -> Option<Self> {
        if u32::from(raw.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH == 0 {
            return None;
        }
        Some(Self {
            dgid: Gid::from_raw(&raw.grh.dgid),
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
        })
    }

    /// Writes the route into a zeroed C path.
    fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        // CAST: A flag that C keeps in a byte.
        raw.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        raw.grh.sgid_index = self.sgid_index;
        raw.grh.hop_limit = self.hop_limit;
        raw.grh.traffic_class = self.traffic_class;
        raw.grh.flow_label = self.flow_label;
        // SAFETY: All members of the union are plain bytes.
        *unsafe { crate::compat::member_mut(&mut raw.grh.dgid.raw) } = self.dgid.0;
    }
}

mod sealed {
    use crate::bindings;

    /// Conversion of paths from and to C.
    pub trait RawPath: Sized {
        /// Converts a path from C; a path of another kind is rejected with `EINVAL`.
        fn from_raw(raw: &bindings::rdma_ah_attr) -> kernel::error::Result<Self>;

        /// Writes the path into a zeroed C path.
        fn write(&self, raw: &mut bindings::rdma_ah_attr);
    }
}

pub(crate) use sealed::RawPath;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A path to a destination (`struct rdma_ah_attr`). Its contents depend on the ports of the device
/// ([`Operations::Path`]): [`Roce`], [`InfiniBand`], [`Unspecified`], or, where ports differ,
/// [`Any`].
///
/// Omni-Path paths are rejected.
pub trait Path:
    sealed::RawPath + Copy + core::fmt::Debug + Default + PartialEq + Send + Sync + 'static
{
}

impl<P> Path for P where
    P: sealed::RawPath + Copy + core::fmt::Debug + Default + PartialEq + Send + Sync + 'static
{
}

/// A path on Ethernet (`struct roce_ah_attr`), for a port whose protocol is RoCE.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Roce {
    /// Service level.
    pub service_level: u8,
    /// Port through which packets leave.
    pub port: Port,
    /// Contents of the IP header, or of the GRH with RoCE version 1.
    pub route: GlobalRoute,
    /// MAC address of the destination or of the next hop, as resolved by the core.
    pub dmac: [u8; 6],
}

impl RawPath for Roce {
    fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        if raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE {
            return Err(EINVAL);
        }
        // SAFETY: The type says that this member of the union is valid.
        let roce = unsafe { crate::compat::member(&raw.__bindgen_anon_1.roce) };
        Ok(Self {
            service_level: raw.sl,
            port: Port::try_from(raw.port_num)?,
            route: GlobalRoute::from_raw(raw).ok_or(EINVAL)?,
            dmac: roce.dmac,
        })
    }

    fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        raw.sl = self.service_level;
        raw.port_num = self.port.number();
        self.route.write(raw);
        // SAFETY: All members of the union are plain bytes; the type says which is valid.
        unsafe { crate::compat::member_mut(&mut raw.__bindgen_anon_1.roce) }.dmac = self.dmac;
    }
}

/// A path within an InfiniBand subnet or to another subnet (`struct ib_ah_attr`; IBTA volume 1,
/// section 11.2.2.1).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct InfiniBand {
    /// Service level.
    pub service_level: u8,
    /// Port through which packets leave.
    pub port: Port,
    /// LID of the destination, or of the router towards it.
    pub dlid: u16,
    /// Low bits of the source LID, which select one of the port's LIDs.
    pub source_path_bits: u8,
    /// Maximum packet rate (`enum ib_rate`); 0 for the rate of the port.
    pub static_rate: u8,
    /// Contents of the GRH, if packets have one.
    pub route: Option<GlobalRoute>,
}

impl RawPath for InfiniBand {
    fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        if raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB {
            return Err(EINVAL);
        }
        // SAFETY: The type says that this member of the union is valid.
        let ib = unsafe { crate::compat::member(&raw.__bindgen_anon_1.ib) };
        Ok(Self {
            service_level: raw.sl,
            port: Port::try_from(raw.port_num)?,
            dlid: ib.dlid,
            source_path_bits: ib.src_path_bits,
            static_rate: raw.static_rate,
            route: GlobalRoute::from_raw(raw),
        })
    }

    fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
        raw.sl = self.service_level;
        raw.static_rate = self.static_rate;
        raw.port_num = self.port.number();
        if let Some(route) = &self.route {
            route.write(raw);
        }
        // SAFETY: All members of the union are plain bytes; the type says which is valid.
        let ib = unsafe { crate::compat::member_mut(&mut raw.__bindgen_anon_1.ib) };
        ib.dlid = self.dlid;
        ib.src_path_bits = self.source_path_bits;
    }
}

/// A path for a port whose protocol the core does not know
/// ([`Protocol::Unspecified`](crate::port::Protocol::Unspecified)). It has nothing but a GID.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Unspecified {
    /// Service level.
    pub service_level: u8,
    /// Port through which packets leave.
    pub port: Port,
    /// Route of the packets.
    pub route: GlobalRoute,
}

impl RawPath for Unspecified {
    fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        if raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_UNDEFINED {
            return Err(EINVAL);
        }
        Ok(Self {
            service_level: raw.sl,
            port: Port::try_from(raw.port_num)?,
            route: GlobalRoute::from_raw(raw).ok_or(EINVAL)?,
        })
    }

    fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_UNDEFINED;
        raw.sl = self.service_level;
        raw.port_num = self.port.number();
        self.route.write(raw);
    }
}

/// A path for a device with both RoCE and InfiniBand ports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Any {
    /// Path from a RoCE port.
    Roce(Roce),
    /// Path from an InfiniBand port.
    InfiniBand(InfiniBand),
}

impl Default for Any {
    fn default() -> Self {
        Self::Roce(Roce::default())
    }
}

impl RawPath for Any {
    fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        match raw.type_ {
            bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE => {
                Roce::from_raw(raw).map(Self::Roce)
            }
            bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB => {
                InfiniBand::from_raw(raw).map(Self::InfiniBand)
            }
            _ => Err(EINVAL),
        }
    }

    fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        match self {
            Self::Roce(path) => path.write(raw),
            Self::InfiniBand(path) => path.write(raw),
        }
    }
}

/// Whether a verb of address handles may sleep (`enum rdma_create_ah_flags`, `enum
/// rdma_destroy_ah_flags`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// The verb may sleep. Verbs that a process calls always may.
    MaySleep,
    /// The verb must not sleep, because its caller in the kernel may hold a spinlock. If creation
    /// has to sleep, it fails with `EOPNOTSUPP`.
    Atomic,
}

impl Context {
    /// Converts the flags of a verb. The bit `sleepable` allows the verb to sleep.
    fn from_raw(flags: u32, sleepable: u32) -> Self {
        if flags & sleepable != 0 {
            Self::MaySleep
        } else {
            Self::Atomic
        }
    }
}

/// An address handle (`struct ib_ah`): the path of datagrams.
///
/// A [`Context`] says whether creation and destruction may sleep. If the driver has verbs for the
/// kernel ([`Operations::Users`]), [`query`](Self::query) and [`Drop`] must never sleep.
#[vtable]
pub trait AddressHandle: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<AddressHandle = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// Whether the driver has address handles; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates an address handle.
    fn create(
        call: &Call<'_, Self::Driver>,
        path: &<Self::Driver as Operations>::Path,
        context: Context,
        user: Caller<Self::Driver, User<'_, Self::Driver, Self::Request>>,
    ) -> Result<(impl PinInit<Self>, Self::Response)>;

    /// Removes the address handle from the hardware, if the hardware knows it; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(_ah: &Ah<Self>, _context: Context, _call: &Call<'_, Self::Driver>) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the path.
    fn query(_ah: &Ah<Self>) -> <Self::Driver as Operations>::Path {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

core_object! {
    /// An address handle: `struct ib_ah` and the driver's part.
    Ah<AddressHandle>, ib_ah
}

/// # Safety
///
/// `ah` must be a new handle of a device of `T`, `init` its attributes, and `udata` the udata of
/// the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the handle; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*ah).device, udata) };
    // SAFETY: The attributes are valid during the call.
    let (flags, path) = unsafe { ((*init).flags, T::Path::from_raw(&*(*init).ah_attr)) };
    // SAFETY: The handle is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Ah<T::AddressHandle>>::new(ah) };
    let context = Context::from_raw(
        flags,
        bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE,
    );

    verb.run(|call| {
        let path = path?;
        let user = caller::<T, _>(verb.user()?)?;
        let (init, response) = T::AddressHandle::create(call, &path, context, user)?;
        let ah = vacant.construct((), init);
        verb.respond(&response)
            .inspect_err(|_| end(ah, context, call))
    })
}

/// # Safety
///
/// `ah` must be a constructed handle of a device of `T`, and `attributes` valid for writes.
pub(crate) unsafe extern "C" fn query_callback<T: Operations>(
    ah: *mut bindings::ib_ah,
    attributes: *mut bindings::rdma_ah_attr,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let (ah, raw) = unsafe { (Ah::<T::AddressHandle>::from_raw(ah), blank(attributes)) };

    T::AddressHandle::query(ah).write(raw);
    0
}

/// # Safety
///
/// `ah` must be a constructed handle of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    ah: *mut bindings::ib_ah,
    flags: u32,
) -> c_int {
    let context = Context::from_raw(
        flags,
        bindings::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE,
    );
    // SAFETY: The core set the device of the handle.
    let verb = unsafe { Verb::<T>::new((*ah).device) };
    // SAFETY: The handle is that of this verb, which succeeds.
    let ah = unsafe { Sole::<Ah<T::AddressHandle>>::new(ah) };

    verb.run(|call| {
        end(ah, context, call);
        Ok(())
    })
}

/// Removes a handle from the hardware and drops it.
fn end<T: Operations>(ah: Sole<'_, Ah<T::AddressHandle>>, context: Context, call: &Call<'_, T>) {
    if T::AddressHandle::HAS_DESTROY {
        T::AddressHandle::destroy(&ah, context, call);
    }
    ah.end();
}
