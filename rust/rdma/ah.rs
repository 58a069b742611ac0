// SPDX-License-Identifier: GPL-2.0

//! Address handles and paths.

use kernel::{
    error::from_result,
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Call,
        Device,
        Operations, //
    },
    gid::Gid,
    object::{
        blank,
        core_object,
        respond, //
    },
    port::Port,
    udata::{
        Request,
        Response,
        Udata,
        User, //
    },
};

/// A path to a destination on Ethernet (`struct rdma_ah_attr` of a RoCE port).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// GID of the destination.
    pub dgid: Gid,
    /// MAC address of the destination or of the next hop; the core resolved it.
    pub dmac: [u8; 6],
    /// Index of the local GID.
    pub sgid_index: u8,
    /// Hop limit of the IP header.
    pub hop_limit: u8,
    /// Traffic class of the IP header.
    pub traffic_class: u8,
    /// Flow label of the IP header, 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub service_level: u8,
    /// Port that packets leave by.
    pub port: Port,
}

impl Attributes {
    /// Takes over a path of C. A path that is not of a RoCE port or has no route is refused with
    /// `EINVAL`.
    pub(crate) fn from_raw(raw: &bindings::rdma_ah_attr) -> Result<Self> {
        if raw.type_ != bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE
            || u32::from(raw.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH == 0
        {
            return Err(EINVAL);
        }
        // SAFETY: The type says which member of the union is valid; all are plain bytes.
        let (roce, dgid) = unsafe {
            (
                raw.__bindgen_anon_1.roce.as_ref(),
                raw.grh.dgid.raw.as_ref(),
            )
        };

        Ok(Self {
            dgid: Gid(*dgid),
            dmac: roce.dmac,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
            service_level: raw.sl,
            port: Port::try_from(raw.port_num)?,
        })
    }

    /// Writes the path into a zeroed path of C.
    pub(crate) fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        // CAST: A flag that C keeps in a byte.
        raw.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        raw.sl = self.service_level;
        raw.port_num = self.port.number();
        raw.grh.sgid_index = self.sgid_index;
        raw.grh.hop_limit = self.hop_limit;
        raw.grh.traffic_class = self.traffic_class;
        raw.grh.flow_label = self.flow_label;
        // SAFETY: The type was set to RoCE above; all members of the unions are plain bytes.
        unsafe {
            *raw.grh.dgid.raw.as_mut() = self.dgid.0;
            raw.__bindgen_anon_1.roce.as_mut().dmac = self.dmac;
        }
    }
}

/// An address handle (`struct ib_ah`): a path that datagrams take.
///
/// Methods may not sleep, nor may its [`Drop`].
pub trait AddressHandle: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<AddressHandle = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// Creates an address handle.
    fn create(
        call: &Call<'_, Self::Driver>,
        attributes: &Attributes,
        user: Option<User<'_, Self::Driver, Self::Request>>,
    ) -> Result<(impl PinInit<Self>, Self::Response)>;

    /// Returns the path.
    fn query(ah: &Ah<Self>) -> Attributes;
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
    // SAFETY: The core set the device of the handle; the call is not over before we return.
    let (device, udata) = unsafe { (Device::<T>::from_raw((*ah).device), Udata::from_raw(udata)) };

    // SAFETY:
    // - Verbs run only while the device is registered; its users have contexts.
    // - The attributes are valid during the call.
    // - The core allocated room for the data, which is constructed here and reachable by nobody
    //   before the call returns.
    from_result(|| unsafe {
        device.with(|call| {
            let attributes = Attributes::from_raw(&*(*init).ah_attr)?;
            let user = udata
                .as_ref()
                .map(|udata| udata.user::<T, _>())
                .transpose()?;
            let (init, response) = T::AddressHandle::create(call, &attributes, user)?;

            Ah::construct(ah, (), init);
            respond(udata.as_ref(), &response)
                .inspect_err(|_| Ah::<T::AddressHandle>::destruct(ah))?;
            Ok(0)
        })
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

    AddressHandle::query(ah).write(raw);
    0
}

/// # Safety
///
/// `ah` must be a constructed handle of a device of `T` that nobody uses any more.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    ah: *mut bindings::ib_ah,
    _flags: u32,
) -> c_int {
    // SAFETY: The handle is constructed, and the core frees it.
    unsafe { Ah::<T::AddressHandle>::destruct(ah) };
    0
}
