// SPDX-License-Identifier: GPL-2.0

//! Tables of memory regions for integrity, which the driver and the device share. The driver writes
//! the pieces of memory for the next registration, and the device the first error that it finds.

use core::sync::atomic::Ordering;

use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};
use rdma::{
    access::AccessFlags,
    integrity::{
        Attributes,
        Check,
        Guard,
        IntegrityError,
        Lists,
        Part,
        Pieces,
        Protection, //
    }, //
};
use virtio::{
    Dma,
    SharedMemory, //
};
use vrnic_wire::{
    command::DeviceLimits,
    integrity::{
        self,
        check,
        domain_flags,
        table_length,
        IntegrityDomain,
        IntegrityElement,
        IntegrityStatus,
        IntegrityTarget,
        ELEMENTS_OFFSET,
        ELEMENT_LENGTH, //
    }, //
};

use crate::mr::rights;

/// Returns how many pieces of data, and of metadata, a region can have on a device with these
/// limits, if the device has such regions.
pub(crate) fn max_pieces(limits: &DeviceLimits) -> u32 {
    // Registrations have 16 bits for each number.
    let max = limits.max_fast_registration_pages.get();
    max.min(u16::MAX.into())
}

/// The table of a region.
pub(crate) struct IntegrityTable {
    memory: SharedMemory,
    max_data: u32,
    max_metadata: u32,
    /// Key of the last registration, until its error was taken; then 0, which is no key.
    due: Atomic<u32>,
}

impl IntegrityTable {
    /// Allocates a table with room for that many pieces.
    pub(crate) fn new(dma: &Dma, max_data: u32, max_metadata: u32) -> Result<Self> {
        let length = usize::try_from(table_length(max_data, max_metadata))?;
        Ok(Self {
            memory: SharedMemory::new(dma, length)?,
            max_data,
            max_metadata,
            due: Atomic::new(0),
        })
    }

    /// Returns the memory of the table.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the numbers of pieces of data and metadata that the table has room for.
    pub(crate) fn room(&self) -> (u32, u32) {
        (self.max_data, self.max_metadata)
    }

    /// Writes the pieces for the next registration; `ENOMEM` if there is no room for all.
    pub(crate) fn map(&self, data: Pieces<'_>, metadata: Pieces<'_>) -> Result {
        self.list(0, self.max_data, data)?;
        self.list(self.max_data, self.max_metadata, metadata)
    }

    /// Writes pieces from element `first` on, where there is room for `max`.
    fn list(&self, first: u32, max: u32, pieces: impl Iterator<Item = (u64, u32)>) -> Result {
        for (i, (address, length)) in (0..).zip(pieces) {
            if i >= max {
                return Err(ENOMEM);
            }
            let element = IntegrityElement {
                address: address.into(),
                length: length.into(),
                ..Default::default()
            };
            let at = ELEMENTS_OFFSET + (first + i) as usize * ELEMENT_LENGTH;
            self.memory.write(at, element.as_bytes())?;
        }
        Ok(())
    }

    /// Records that a registration with this key is posted. From now on errors are its own.
    pub(crate) fn registers(&self, key: u32) {
        self.due.store(key, Relaxed);
    }

    /// Takes the error of the last registration, if one was found. `EIO` if the device reports an
    /// unknown one.
    pub(crate) fn take_error(&self) -> Result<Option<IntegrityError>> {
        // The device writes the rest first.
        let error = u32::from_le(self.memory.u32(0)?.load(Ordering::Acquire));
        let part = match integrity::IntegrityError::try_from(error) {
            Ok(integrity::IntegrityError::None) => return Ok(None),
            Ok(integrity::IntegrityError::Guard) => Part::Guard,
            Ok(integrity::IntegrityError::RefTag) => Part::ReferenceTag,
            Ok(integrity::IntegrityError::AppTag) => Part::ApplicationTag,
            Err(_) => return Err(EIO),
        };
        let mut status = IntegrityStatus::default();
        self.memory.read(0, status.as_mut_bytes())?;
        let key = status.key.get();
        // The device clears an error only when it executes the next registration.
        if key == 0 || self.due.cmpxchg(key, 0, Relaxed).is_err() {
            return Ok(None);
        }
        Ok(Some(IntegrityError {
            part,
            expected: status.expected.get(),
            actual: status.actual.get(),
            offset: status.offset.get(),
            key,
        }))
    }
}

/// Translates a registration of a region whose table has been filled. `EINVAL` if no domain has
/// protection information, if blocks are longer in one domain than in the other, or if the device
/// does not know blocks of that length.
pub(crate) fn target(
    lists: &Lists,
    attributes: &Attributes,
    key: u32,
    access: AccessFlags,
) -> Result<IntegrityTarget> {
    let Attributes {
        checks,
        memory,
        wire,
    } = attributes;
    let interval = match (memory, wire) {
        (Some(memory), Some(wire)) if memory.interval != wire.interval => return Err(EINVAL),
        (Some(any), _) | (None, Some(any)) => any.interval,
        (None, None) => return Err(EINVAL),
    };
    // The device would end the request with an error, and with it the connection.
    if !(integrity::MIN_INTERVAL..=integrity::MAX_INTERVAL).contains(&interval) || interval % 8 != 0
    {
        return Err(EINVAL);
    }
    let mut check_mask = 0;
    for (check, wire) in [
        (Check::Guard, check::GUARD),
        (Check::ApplicationTag, check::APP_TAG),
        (Check::ReferenceTag, check::REF_TAG),
    ] {
        if checks.contains(check) {
            check_mask |= wire;
        }
    }
    Ok(IntegrityTarget {
        key: key.into(),
        access: rights(access)?.into(),
        elements: u16::try_from(lists.data.pieces)?.into(),
        // Some users give pieces that nothing is written to.
        metadata_elements: match memory {
            Some(_) => u16::try_from(lists.metadata.pieces)?,
            None => 0,
        }
        .into(),
        interval: interval.into(),
        check_mask,
        reserved: 0,
        memory: domain(memory),
        wire: domain(wire),
    })
}

/// Translates a domain.
fn domain(protection: &Option<Protection>) -> IntegrityDomain {
    let Some(protection) = protection else {
        return IntegrityDomain::default();
    };
    let mut flags = 0;
    for (has, flag) in [
        (protection.reference_increments, domain_flags::REF_INCREMENT),
        (protection.application_escape, domain_flags::APP_ESCAPE),
        (protection.reference_escape, domain_flags::REF_ESCAPE),
    ] {
        if has {
            flags |= flag;
        }
    }
    let guard = match protection.guard {
        Guard::Crc => integrity::Guard::Crc,
        Guard::IpChecksum => integrity::Guard::Ip,
    };
    IntegrityDomain {
        ref_tag: protection.reference_tag.into(),
        app_tag: protection.application_tag.into(),
        app_mask: protection.application_mask.into(),
        guard_seed: protection.seed.into(),
        guard: guard.raw(),
        flags,
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_integrity)]
mod tests {
    use super::*;

    use rdma::{
        access::Access,
        integrity::Extent, //
    };

    const PROTECTION: Protection = Protection {
        guard: Guard::IpChecksum,
        interval: 4096,
        seed: 1,
        application_tag: 2,
        application_mask: 3,
        reference_tag: 4,
        reference_increments: true,
        application_escape: false,
        reference_escape: true,
    };

    const LISTS: Lists = Lists {
        data: Extent {
            pieces: 5,
            length: 8192,
        },
        metadata: Extent {
            pieces: 6,
            length: 16,
        },
    };

    fn attributes(memory: Option<Protection>, wire: Option<Protection>) -> Attributes {
        Attributes {
            checks: Check::ApplicationTag | Check::ReferenceTag,
            memory,
            wire,
        }
    }

    fn with_table(test: impl FnOnce(&IntegrityTable) -> Result) -> Result {
        virtio::testing::with_dma(|dma| test(&IntegrityTable::new(dma, 300, 2)?))
    }

    /// Acts as the device, which reports an error.
    fn report(table: &IntegrityTable, error: u32, key: u32) -> Result {
        let status = IntegrityStatus {
            error: error.into(),
            key: key.into(),
            offset: (1 << 33).into(),
            expected: 11.into(),
            actual: 12.into(),
            ..Default::default()
        };
        table.memory.write(0, status.as_bytes())
    }

    #[test]
    fn a_registration_is_encoded() -> Result {
        let of = |memory, wire| {
            let access = Access::LocalWrite.into();
            target(&LISTS, &attributes(memory, wire), 0x1234_5678, access)
        };
        let encoded = IntegrityDomain {
            ref_tag: 4.into(),
            app_tag: 2.into(),
            app_mask: 3.into(),
            guard_seed: 1.into(),
            guard: integrity::Guard::Ip.raw(),
            flags: domain_flags::REF_INCREMENT | domain_flags::REF_ESCAPE,
        };
        let expected = IntegrityTarget {
            key: 0x1234_5678.into(),
            access: 1.into(),
            elements: 5.into(),
            metadata_elements: 6.into(),
            interval: 4096.into(),
            check_mask: 0x3f,
            reserved: 0,
            memory: encoded,
            wire: encoded,
        };
        assert_eq!(of(Some(PROTECTION), Some(PROTECTION)), Ok(expected));
        let wire = IntegrityDomain::default();
        let stripped = of(Some(PROTECTION), None);
        assert_eq!(stripped, Ok(IntegrityTarget { wire, ..expected }));
        // Nothing is written to the metadata.
        let inserted = IntegrityTarget {
            metadata_elements: 0.into(),
            memory: IntegrityDomain::default(),
            ..expected
        };
        assert_eq!(of(None, Some(PROTECTION)), Ok(inserted));

        assert_eq!(of(None, None), Err(EINVAL));
        let short = Protection {
            interval: 512,
            ..PROTECTION
        };
        assert_eq!(of(Some(PROTECTION), Some(short)), Err(EINVAL));
        for interval in [0, 504, 516, 8192] {
            let wrong = Some(Protection {
                interval,
                ..PROTECTION
            });
            assert_eq!(of(wrong, wrong), Err(EINVAL));
        }
        let crc = domain(&Some(Protection {
            guard: Guard::Crc,
            application_escape: true,
            ..PROTECTION
        }));
        assert_eq!(crc.guard, integrity::Guard::Crc.raw());
        assert_eq!(crc.flags, domain_flags::ALL);
        Ok(())
    }

    #[test]
    fn pieces_of_metadata_follow_the_room_for_data() -> Result {
        with_table(|table| {
            // The table has more than one page.
            assert_eq!(table.memory().len(), 32 + 302 * 16);
            let pieces = |count: u32| (0..count).map(|i| (0x1_0000_0000 + u64::from(i), i + 1));
            table.list(0, 300, pieces(300))?;
            table.list(300, 2, pieces(2))?;
            assert_eq!(table.list(0, 300, pieces(301)), Err(ENOMEM));
            assert_eq!(table.list(300, 2, pieces(3)), Err(ENOMEM));
            let read = |index: usize| {
                let mut element = IntegrityElement::default();
                let at = 32 + 16 * index;
                table.memory.read(at, element.as_mut_bytes())?;
                Ok::<_, Error>((element.address.get(), element.length.get()))
            };
            assert_eq!(read(0)?, (0x1_0000_0000, 1));
            assert_eq!(read(299)?, (0x1_0000_012b, 300));
            assert_eq!(read(301)?, (0x1_0000_0001, 2));
            Ok(())
        })
    }

    #[test]
    fn an_error_is_taken_once() -> Result {
        with_table(|table| {
            table.registers(0x100);
            assert_eq!(table.take_error(), Ok(None));
            report(table, 2, 0x100)?;
            let expected = IntegrityError {
                part: Part::ReferenceTag,
                expected: 11,
                actual: 12,
                offset: 1 << 33,
                key: 0x100,
            };
            assert_eq!(table.take_error(), Ok(Some(expected)));
            assert_eq!(table.take_error(), Ok(None));

            // The next registration was posted, but not executed.
            table.registers(0x101);
            assert_eq!(table.take_error(), Ok(None));
            for (error, part) in [(1, Part::Guard), (3, Part::ApplicationTag)] {
                table.registers(0x101);
                report(table, error, 0x101)?;
                let found = table.take_error()?.map(|error| error.part);
                assert_eq!(found, Some(part));
            }
            Ok(())
        })
    }

    #[test]
    fn an_unknown_error_is_one() -> Result {
        with_table(|table| {
            table.registers(0x100);
            report(table, 4, 0x100)?;
            assert_eq!(table.take_error(), Err(EIO));
            // A region that was never registered has no error.
            table.registers(0);
            report(table, 1, 0)?;
            assert_eq!(table.take_error(), Ok(None));
            Ok(())
        })
    }
}
