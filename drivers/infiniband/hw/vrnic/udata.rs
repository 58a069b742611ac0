// SPDX-License-Identifier: GPL-2.0

//! The driver's part of the uverbs commands (`include/uapi/rdma/vrnic-abi.h`).

use kernel::prelude::*;
use rdma::udata::{
    Request,
    Response, //
};
use vrnic_wire::abi;
use zerocopy_derive::{
    Immutable,
    IntoBytes, //
};

/// Defines requests: newtypes of the structures in `abi`, with a check of their reserved members.
/// The number of bytes that a request must have follows unless that is all of them.
macro_rules! requests {
    ($($(#[$meta:meta])* $name:ident { $($reserved:ident),* } $($minimum:literal)?;)*) => {
        $(
            $(#[$meta])*
            #[derive(FromBytes)]
            #[repr(transparent)]
            pub(crate) struct $name(pub(crate) abi::$name);

            impl Request for $name {
                $(const MINIMUM: usize = $minimum;)?

                fn comp_mask(&self) -> u64 {
                    self.0.comp_mask.into()
                }

                fn check_reserved(&self) -> Result {
                    $(
                        if self.0.$reserved.iter().any(|&byte| byte != 0) {
                            return Err(EINVAL);
                        }
                    )*
                    Ok(())
                }
            }
        )*
    };
}

requests! {
    /// Request of ALLOC_CONTEXT.
    AllocContextRequest {};
    /// Request of CREATE_CQ and RESIZE_CQ.
    CreateCqRequest { reserved_20 };
    /// Request of CREATE_QP.
    CreateQpRequest { reserved_20 };
    /// Request of CREATE_QP with an indirection table.
    CreateScalingQpRequest {};
    /// Request of MODIFY_QP, which may be left out.
    ModifyQpRequest { reserved_50 } 0;
    /// Request of CREATE_SRQ, of MODIFY_SRQ when it resizes the queue, and of CREATE_WQ.
    CreateSrqRequest { reserved_20 };
}

/// Defines responses: newtypes of the structures in `abi`.
macro_rules! responses {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $(
            $(#[$meta])*
            #[derive(Immutable, IntoBytes)]
            #[repr(transparent)]
            pub(crate) struct $name(pub(crate) abi::$name);

            impl Response for $name {}
        )*
    };
}

responses! {
    /// Response of ALLOC_CONTEXT.
    AllocContextResponse;
    /// Response of QUERY_DEVICE.
    QueryDeviceResponse;
    /// Response of the method that reads the clock.
    QueryClockResponse;
    /// Response of the method that locates a device memory buffer.
    QueryDmResponse;
    /// Response of the method that locates the counts of a completion counter.
    QueryCompCntrResponse;
    /// Response of CREATE_CQ.
    CreateCqResponse;
    /// Response of CREATE_QP and CREATE_WQ.
    CreateQpResponse;
    /// Response of CREATE_SRQ.
    CreateSrqResponse;
    /// Response of CREATE_AH.
    CreateAhResponse;
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_udata)]
mod tests {
    use super::*;

    #[test]
    fn reserved_members_must_be_zero() -> Result {
        let mut bytes = [0; size_of::<abi::CreateQpRequest>()];
        let request = CreateQpRequest::read_from_bytes(&bytes).map_err(|_| EINVAL)?;
        assert!(request.check_reserved().is_ok());
        assert_eq!(request.comp_mask() & !CreateQpRequest::COMP_MASK, 0);

        bytes[7] = 1;
        let request = CreateQpRequest::read_from_bytes(&bytes).map_err(|_| EINVAL)?;
        assert_eq!(request.check_reserved(), Err(EINVAL));

        bytes[0] = 1;
        let request = CreateQpRequest::read_from_bytes(&bytes).map_err(|_| EINVAL)?;
        assert_ne!(request.comp_mask() & !CreateQpRequest::COMP_MASK, 0);
        Ok(())
    }

    #[test]
    fn all_of_the_first_version_is_demanded() {
        assert_eq!(AllocContextRequest::MINIMUM, 8);
        assert_eq!(CreateCqRequest::MINIMUM, 40);
        assert_eq!(CreateQpRequest::MINIMUM, 56);
        assert_eq!(CreateScalingQpRequest::MINIMUM, 48);
        assert_eq!(ModifyQpRequest::MINIMUM, 0);
        assert_eq!(CreateSrqRequest::MINIMUM, 40);
    }
}
