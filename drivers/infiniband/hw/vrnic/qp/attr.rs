// SPDX-License-Identifier: GPL-2.0

//! Queue pair attributes in the wire format.

use kernel::prelude::*;
use rdma::{
    access::AccessFlags,
    ah::Any,
    port::{
        Mtu,
        Port, //
    },
    qp::{
        AlternatePath,
        Attribute,
        AttributeMask,
        Migration,
        QpAttr,
        State, //
    }, //
};
use virtio::Features;
use vrnic_wire::{
    command::QpPaths,
    memory::access,
    qp::{
        attribute,
        QpAttributes,
        QpState, //
    }, //
};

use crate::{
    ah,
    feature,
    port::Link,
    udata::ModifyQpRequest, //
};

/// Attributes that need path migration.
const MIGRATION: u32 = attribute::ALTERNATE_PATH | attribute::PATH_MIGRATION_STATE;

/// Attributes that every device supports.
const KNOWN: u32 = (attribute::DEST_QPN << 1) - 1 - MIGRATION - attribute::CAPACITIES;

/// Translates attributes, except the alternate path, and those of a process's request. `EOPNOTSUPP`
/// for attributes that a device with these features does not support. `EINVAL` if the request
/// belongs to an attribute that is not in `mask`.
pub(crate) fn to_wire(
    mask: AttributeMask,
    attributes: &QpAttr<Any>,
    request: &ModifyQpRequest,
    features: Features,
) -> Result<QpAttributes> {
    let mut known = KNOWN;
    if features.contains(feature::PATH_MIGRATION) {
        known |= MIGRATION;
    }
    if features.contains(feature::RATE_LIMITS) {
        known |= attribute::RATE_LIMIT;
    }
    if mask.bits() & !known != 0 {
        return Err(EOPNOTSUPP);
    }
    let memory_placement = features.contains(feature::MEMORY_PLACEMENT);
    let ModifyQpRequest(burst) = request;
    let has_burst = burst.max_burst != 0 || burst.typical_packet != 0;
    if has_burst && !mask.contains(Attribute::RateLimit) {
        return Err(EINVAL);
    }
    Ok(QpAttributes {
        mask: mask.bits().into(),
        // CAST: The wire format uses the verbs' numbers for states and MTUs; see below.
        state: attributes.state.raw() as u8,
        current_state: attributes.current_state.raw() as u8,
        path_mtu: attributes.path_mtu.raw() as u8,
        sqd_async_notify: attributes.drain_notify.into(),
        qkey: attributes.qkey.into(),
        rq_psn: attributes.rq_psn.into(),
        sq_psn: attributes.sq_psn.into(),
        dest_qpn: attributes.dest_qpn.into(),
        // Rights for operations that the device lacks have no effect.
        access: (attributes.access.bits() & access::queue_pair(memory_placement)).into(),
        pkey_index: attributes.pkey_index.into(),
        port: u8::try_from(attributes.port.number())?,
        max_rd_atomic: attributes.max_rd_atomic,
        max_dest_rd_atomic: attributes.max_dest_rd_atomic,
        min_rnr_timer: attributes.min_rnr_timer,
        timeout: attributes.timeout,
        retry_count: attributes.retry_count,
        rnr_retry: attributes.rnr_retry,
        sq_draining: 0,
        path_migration_state: attributes.migration.raw() as u8,
        reserved_39: 0,
        rate_limit: attributes.rate_limit.into(),
        max_burst: burst.max_burst.into(),
        typical_packet: burst.typical_packet.into(),
        reserved: [0; 14],
        address: ah::to_wire(&attributes.path),
    })
}

/// Translates an alternate path for the device.
pub(crate) fn alternate_to_wire(
    alternate: &AlternatePath<Any>,
) -> Result<vrnic_wire::qp::AlternatePath> {
    Ok(vrnic_wire::qp::AlternatePath {
        address: ah::to_wire(&alternate.path),
        pkey_index: alternate.pkey_index.into(),
        port: u8::try_from(alternate.port.number())?,
        timeout: alternate.timeout,
        reserved: 0.into(),
    })
}

/// Translates attributes from the device; `EINVAL` for invalid values.
pub(crate) fn from_wire(paths: &QpPaths, link: Link) -> Result<QpAttr<Any>> {
    let QpPaths {
        attributes: wire,
        alternate,
    } = paths;
    let is_loaded = *alternate != Default::default();
    Ok(QpAttr {
        state: State::try_from(u32::from(wire.state))?,
        current_state: State::try_from(u32::from(wire.current_state))?,
        // A queue pair without a path has no MTU yet.
        path_mtu: Mtu::try_from(u32::from(wire.path_mtu)).unwrap_or(Mtu::Mtu256),
        qkey: wire.qkey.get(),
        rq_psn: wire.rq_psn.get(),
        sq_psn: wire.sq_psn.get(),
        dest_qpn: wire.dest_qpn.get(),
        access: AccessFlags::from_bits(wire.access.get()),
        pkey_index: wire.pkey_index.get(),
        port: Port::try_from(u32::from(wire.port)).unwrap_or(Port::FIRST),
        max_rd_atomic: wire.max_rd_atomic,
        max_dest_rd_atomic: wire.max_dest_rd_atomic,
        min_rnr_timer: wire.min_rnr_timer,
        timeout: wire.timeout,
        retry_count: wire.retry_count,
        rnr_retry: wire.rnr_retry,
        drain_notify: wire.sqd_async_notify != 0,
        draining: wire.sq_draining != 0,
        path: ah::from_wire(&wire.address, link),
        alternate: match is_loaded {
            true => Some(AlternatePath {
                path: ah::from_wire(&alternate.address, link),
                pkey_index: alternate.pkey_index.get(),
                port: Port::try_from(u32::from(alternate.port))?,
                timeout: alternate.timeout,
            }),
            false => None,
        },
        migration: Migration::try_from(u32::from(wire.path_migration_state))?,
        rate_limit: wire.rate_limit.get(),
    })
}

/// Returns the attributes of a queue pair, last in state `last`, of a stopped device. It is as good
/// as in error; the caller may be about to destroy it.
pub(crate) fn of_stopped(last: State, link: Link) -> QpAttr<Any> {
    let state = match last {
        State::Reset => State::Reset,
        _ => State::Error,
    };
    QpAttr {
        state,
        current_state: state,
        path: ah::from_wire(&Default::default(), link),
        ..Default::default()
    }
}

// The wire format uses the verbs' numbers for states and attributes.
const _: () = {
    assert!(QpState::Reset.raw() as u32 == State::Reset.raw());
    assert!(QpState::Error.raw() as u32 == State::Error.raw());
    assert!(attribute::STATE == Attribute::State as u32);
    assert!(attribute::DEST_QPN == Attribute::DestQpn as u32);
    assert!(attribute::PATH_MIGRATION_STATE == Attribute::PathMigrationState as u32);
    assert!(attribute::RATE_LIMIT == Attribute::RateLimit as u32);
    assert!(vrnic_wire::qp::Migration::Migrated.raw() as u32 == Migration::Migrated.raw());
    assert!(vrnic_wire::qp::Migration::Rearm.raw() as u32 == Migration::Rearm.raw());
    assert!(vrnic_wire::qp::Migration::Armed.raw() as u32 == Migration::Armed.raw());
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_attr)]
mod tests {
    use super::*;

    use rdma::{
        access::Access,
        ah::InfiniBand, //
    };
    use vrnic_wire::abi;

    /// A request without anything.
    const NOTHING: ModifyQpRequest = ModifyQpRequest(abi::ModifyQpRequest {
        comp_mask: 0,
        max_burst: 0,
        typical_packet: 0,
        reserved_50: [0; 6],
    });

    #[test]
    fn attributes_survive_the_translation() -> Result {
        let attributes = QpAttr {
            state: State::ReadyToReceive,
            current_state: State::Init,
            path_mtu: Mtu::Mtu2048,
            qkey: 1,
            rq_psn: 2,
            sq_psn: 3,
            dest_qpn: 4,
            access: Access::RemoteWrite | Access::RemoteAtomic,
            pkey_index: 0,
            port: Port::FIRST,
            max_rd_atomic: 5,
            max_dest_rd_atomic: 6,
            min_rnr_timer: 7,
            timeout: 8,
            retry_count: 3,
            rnr_retry: 2,
            drain_notify: true,
            draining: false,
            ..Default::default()
        };
        let mask = Attribute::State | Attribute::PathMtu;
        let wire = to_wire(mask, &attributes, &NOTHING, Features::default())?;
        assert_eq!(wire.mask.get(), attribute::STATE | attribute::PATH_MTU);
        let reply = QpPaths {
            attributes: wire,
            ..Default::default()
        };
        assert_eq!(from_wire(&reply, Link::Ethernet)?, attributes);
        for migration in [Attribute::AlternatePath, Attribute::PathMigrationState] {
            let with = |features| to_wire(mask | migration, &attributes, &NOTHING, features);
            assert_eq!(with(Features::default()).err(), Some(EOPNOTSUPP));
            assert!(with(feature::PATH_MIGRATION.into()).is_ok());
        }
        let flush = QpAttr {
            access: attributes.access | Access::FlushGlobal,
            ..attributes
        };
        let access = |features| to_wire(mask, &flush, &NOTHING, features).map(|wire| wire.access);
        let placement = access(feature::MEMORY_PLACEMENT.into())?;
        assert_eq!(placement.get(), flush.access.bits());
        let nothing = access(Features::default())?;
        assert_eq!(nothing.get(), attributes.access.bits());
        Ok(())
    }

    #[test]
    fn a_queue_pair_of_a_stopped_device_is_in_error() {
        let link = Link::InfiniBand;
        assert_eq!(of_stopped(State::Reset, link).state, State::Reset);
        for last in [State::Init, State::ReadyToSend, State::Error] {
            assert_eq!(of_stopped(last, link).current_state, State::Error);
        }
        // Paths are of the kind that the port has.
        let path = |link| of_stopped(State::ReadyToSend, link).path;
        assert!(matches!(path(Link::InfiniBand), Any::InfiniBand(_)));
        assert!(matches!(path(Link::Ethernet), Any::Roce(_)));
    }

    #[test]
    fn an_alternate_path_survives_the_translation() -> Result {
        let path = |dlid| {
            Any::InfiniBand(InfiniBand {
                dlid,
                source_path_bits: 2,
                ..Default::default()
            })
        };
        let alternate = AlternatePath {
            path: path(6),
            pkey_index: 3,
            port: Port::FIRST,
            timeout: 17,
        };
        for migration in [Migration::Migrated, Migration::Rearm, Migration::Armed] {
            let attributes = QpAttr {
                path: path(5),
                alternate: Some(alternate),
                migration,
                ..Default::default()
            };
            let mask = Attribute::AlternatePath | Attribute::PathMigrationState;
            let mut reply = QpPaths {
                attributes: to_wire(mask, &attributes, &NOTHING, feature::PATH_MIGRATION.into())?,
                alternate: alternate_to_wire(&alternate)?,
            };
            assert_eq!(from_wire(&reply, Link::InfiniBand)?, attributes);
            // A port number that a device must not report.
            reply.alternate.port = 0;
            assert_eq!(from_wire(&reply, Link::InfiniBand).err(), Some(EINVAL));
            reply.alternate = Default::default();
            assert_eq!(from_wire(&reply, Link::InfiniBand)?.alternate, None);
            reply.attributes.path_migration_state = 3;
            assert_eq!(from_wire(&reply, Link::InfiniBand).err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn a_rate_limit_survives_the_translation() -> Result {
        let attributes = QpAttr {
            path: Any::InfiniBand(Default::default()),
            rate_limit: 80_000,
            ..Default::default()
        };
        let burst = ModifyQpRequest(abi::ModifyQpRequest {
            max_burst: 8192,
            typical_packet: 1024,
            ..Default::default()
        });
        let limit = AttributeMask::from(Attribute::RateLimit);
        let limits = Features::from(feature::RATE_LIMITS);
        let wire = to_wire(limit, &attributes, &burst, limits)?;
        assert_eq!(wire.mask.get(), attribute::RATE_LIMIT);
        assert_eq!(wire.rate_limit.get(), 80_000);
        assert_eq!(
            (wire.max_burst.get(), wire.typical_packet.get()),
            (8192, 1024)
        );
        let reply = QpPaths {
            attributes: wire,
            ..Default::default()
        };
        assert_eq!(from_wire(&reply, Link::InfiniBand)?, attributes);

        let refused = to_wire(limit, &attributes, &burst, Features::default());
        assert_eq!(refused.err(), Some(EOPNOTSUPP));
        // Without the attribute, there is nothing that a burst could belong to.
        let other = AttributeMask::from(Attribute::State);
        let refused = to_wire(other, &Default::default(), &burst, limits);
        assert_eq!(refused.err(), Some(EINVAL));
        Ok(())
    }
}
