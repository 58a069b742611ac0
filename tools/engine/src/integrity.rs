// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Integrity regions: blocks of data get, lose or change their protection information (PI) when they pass through one.
//!
//! What passes is computed from its offset in the region and from guest memory, so an access can begin and end
//! anywhere, and can be repeated. The one exception is PI that is written in parts: it is kept until it is complete.

use crate::{
    buffer::{Buffer, BufferBuilder},
    cause::Cause,
    guard::{Guard, Sum},
    memory::{GuestAddress, HostRange, Memory, Unmapped},
    segment::Payload,
};
use serde::{Deserialize, Serialize};
use std::{cell::Cell, ops::Range};
use vrnic_wire::{
    integrity::{
        self, ELEMENT_LENGTH, ELEMENTS_OFFSET, IntegrityDomain, IntegrityElement, IntegrityError,
        IntegrityStatus, IntegrityTarget, MAX_INTERVAL, MIN_INTERVAL, PI_LENGTH, domain_flags,
    },
    memory::access,
};
use zerocopy::IntoBytes;

/// Number of bytes of a block that are read at a time.
const PIECE: u64 = 1024;

/// Rights that an integrity region can have.
const RIGHTS: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::RELAXED_ORDERING;

/// Protection information of a block.
type Pi = [u8; PI_LENGTH];

/// Places in PI.
const GUARD: Range<usize> = 0..2;
const APP_TAG: Range<usize> = 2..4;
const REF_TAG: Range<usize> = 4..8;

/// What protects the blocks of a domain.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Protection {
    guard: Guard,
    seed: u16,
    app_tag: u16,
    app_mask: u16,
    ref_tag: u32,
    /// Bits of [`domain_flags`].
    flags: u8,
}

impl Protection {
    /// Decodes a domain; `None` if it has no PI.
    fn of(domain: &IntegrityDomain) -> Result<Option<Self>, Cause> {
        let guard = match integrity::Guard::try_from(domain.guard) {
            Ok(integrity::Guard::None) => None,
            Ok(integrity::Guard::Crc) => Some(Guard::Crc),
            Ok(integrity::Guard::Ip) => Some(Guard::Ip),
            Err(_) => return Err(Cause::IntegrityFormat),
        };
        if domain.flags & !domain_flags::ALL != 0 {
            return Err(Cause::IntegrityFormat);
        }
        Ok(guard.map(|guard| Self {
            guard,
            seed: domain.guard_seed.get(),
            app_tag: domain.app_tag.get(),
            app_mask: domain.app_mask.get(),
            ref_tag: domain.ref_tag.get(),
            flags: domain.flags,
        }))
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the reference tag that a block should have.
    fn ref_tag(&self, block: u64) -> u32 {
        if self.has(domain_flags::REF_INCREMENT) {
            // The tags of long regions repeat.
            self.ref_tag.wrapping_add(block as u32)
        } else {
            self.ref_tag
        }
    }

    /// Returns whether a block with this PI is not to be checked.
    fn excuses(&self, pi: Pi) -> bool {
        let is_escape = |place: Range<usize>| pi[place].iter().all(|&byte| byte == 0xff);
        self.has(domain_flags::APP_ESCAPE)
            && is_escape(APP_TAG)
            && (!self.has(domain_flags::REF_ESCAPE) || is_escape(REF_TAG))
    }
}

/// What a registration says about the blocks.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Format {
    /// Key of the registration.
    key: u32,
    /// Length of a block in bytes.
    interval: u64,
    /// Bits of PI to check, apart from those that a domain excludes.
    mask: Pi,
    memory: Option<Protection>,
    wire: Option<Protection>,
}

impl Format {
    fn new(wanted: &IntegrityTarget) -> Result<Self, Cause> {
        let interval = wanted.interval.get();
        let memory = Protection::of(&wanted.memory)?;
        let wire = Protection::of(&wanted.wire)?;
        let valid = (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval)
            && interval.is_multiple_of(8)
            && (memory.is_some() || wire.is_some());
        if !valid {
            return Err(Cause::IntegrityFormat);
        }
        let mut mask = Pi::default();
        for (byte, mask) in mask.iter_mut().enumerate() {
            if wanted.check_mask & 0x80 >> byte != 0 {
                *mask = 0xff;
            }
        }
        Ok(Self {
            key: wanted.key.get(),
            interval: interval.into(),
            mask,
            memory,
            wire,
        })
    }

    /// Returns the distance from one block to the next in the region.
    fn stride(&self) -> u64 {
        self.interval
            + if self.wire.is_some() {
                PI_LENGTH as u64
            } else {
                0
            }
    }

    /// Returns the end of a block in the region that matters: its PI, or its last byte if there is none.
    fn tail(&self) -> u64 {
        if self.wire.is_some() {
            PI_LENGTH as u64
        } else {
            1
        }
    }

    /// Returns each block that has some of the `length` bytes at `offset` in its [tail](Self::tail), with the part of
    /// the tail, and its place among these bytes.
    fn tails(
        &self,
        offset: u64,
        length: u64,
    ) -> impl Iterator<Item = (u64, Range<usize>, u64)> + use<> {
        let (stride, tail) = (self.stride(), self.tail());
        let end = offset + length;
        (offset / stride..end.div_ceil(stride)).filter_map(move |block| {
            let start = (block + 1) * stride - tail;
            let (from, to) = (start.max(offset), (start + tail).min(end));
            let part = from.checked_sub(start)? as usize..to.checked_sub(start)? as usize;
            (from < to).then(|| (block, part, from - offset))
        })
    }
}

/// PI of which some bytes have been written.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
struct Unfinished {
    block: u64,
    pi: Pi,
    /// A bit for each byte that was written.
    written: u8,
}

/// An integrity region.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Integrity {
    max_elements: u32,
    max_metadata_elements: u32,
    /// Location of the status.
    status: HostRange,
    data: Buffer,
    metadata: Buffer,
    /// Missing until the region was registered for the first time.
    format: Option<Format>,
    unfinished: Cell<Unfinished>,
    /// Whether a block that differs was reported.
    reported: Cell<bool>,
}

impl Integrity {
    /// Creates a region whose table has room for so many elements.
    pub(crate) fn new(
        table: &Buffer,
        max_elements: u32,
        max_metadata_elements: u32,
    ) -> Option<Self> {
        Some(Self {
            max_elements,
            max_metadata_elements,
            status: table.contiguous(0, size_of::<IntegrityStatus>() as u64)?,
            data: Buffer::default(),
            metadata: Buffer::default(),
            format: None,
            unfinished: Cell::default(),
            reported: Cell::default(),
        })
    }

    /// Returns the length of the region in bytes.
    pub(crate) fn length(&self) -> u64 {
        let blocks = |format: &Format| self.data.length() / format.interval * format.stride();
        self.format.as_ref().map_or(0, blocks)
    }

    /// Registers the memory that the table lists. If this fails, the region has no memory.
    pub(crate) fn register<M: Memory>(
        &mut self,
        wanted: &IntegrityTarget,
        table: &Buffer,
        max_length: u64,
        memory: &M,
    ) -> Result<(), Cause> {
        let rights = wanted.access.get();
        let unlawful = rights & access::REMOTE_CHANGES != 0 && rights & access::LOCAL_WRITE == 0;
        if rights & !RIGHTS != 0 || unlawful {
            return Err(Cause::AccessRights);
        }
        let format = Format::new(wanted)?;
        let elements = u32::from(wanted.elements.get());
        let metadata_elements = u32::from(wanted.metadata_elements.get());
        if elements == 0
            || elements > self.max_elements
            || metadata_elements > self.max_metadata_elements
            || (metadata_elements > 0) != format.memory.is_some()
        {
            return Err(Cause::IntegrityElements);
        }
        self.format = None;
        read_elements(table, 0..elements, &mut self.data, memory)?;
        let first = self.max_elements;
        let places = first..first + metadata_elements;
        read_elements(table, places, &mut self.metadata, memory)?;
        let blocks = self.data.length() / format.interval;
        let expected = match format.memory {
            Some(_) => blocks * PI_LENGTH as u64,
            None => 0,
        };
        if !self.data.length().is_multiple_of(format.interval)
            || self.metadata.length() != expected
            || blocks * format.stride() > max_length
        {
            return Err(Cause::IntegrityLength);
        }
        memory
            .store_u32(self.status, 0, IntegrityError::None.raw())
            .map_err(|_| Cause::RegisterTable)?;
        self.unfinished = Cell::default();
        self.reported = Cell::default();
        self.format = Some(format);
        Ok(())
    }

    /// Appends the host ranges of the `length` bytes at `offset`. PI is in no memory there: it has to
    /// [pass](Self::pass_read). If they exceed the region, appends nothing and returns `None`.
    pub(crate) fn ranges(
        &self,
        mut offset: u64,
        length: u64,
        ranges: &mut Vec<HostRange>,
    ) -> Option<()> {
        let format = self.format.as_ref()?;
        let end = offset.checked_add(length)?;
        if end > self.length() {
            return None;
        }
        if format.wire.is_none() {
            return self.data.ranges(offset, length, ranges);
        }
        while offset < end {
            let (block, inside) = (offset / format.stride(), offset % format.stride());
            let part = if inside < format.interval {
                let part = (format.interval - inside).min(end - offset);
                self.data
                    .ranges(block * format.interval + inside, part, ranges)?;
                part
            } else {
                let part = (format.stride() - inside).min(end - offset);
                ranges.push(HostRange::null(part));
                part
            };
            offset += part;
        }
        Some(())
    }

    /// Fills in the PI among `bytes`, which were read at `offset`, and checks the blocks that end there.
    pub(crate) fn pass_read<M: Memory>(
        &self,
        offset: u64,
        bytes: &mut [u8],
        memory: &M,
    ) -> Result<(), Unmapped> {
        let format = self.format.as_ref().ok_or(Unmapped)?;
        for (block, part, place) in format.tails(offset, bytes.len() as u64) {
            let mut source = None;
            if let Some(from) = &format.memory {
                let mut pi = Pi::default();
                self.read_metadata(block, &mut pi, memory)?;
                if part.end as u64 == format.tail() {
                    self.check(format, block, pi, from, memory)?;
                }
                source = Some((pi, from));
            }
            if let Some(to) = &format.wire {
                let pi = self.converted(format, block, source, to, memory)?;
                let place = place as usize;
                bytes[place..place + part.len()].copy_from_slice(&pi[part]);
            }
        }
        Ok(())
    }

    /// Handles the PI of blocks after `length` bytes of `payload`, from byte `skip` on, were written at `offset`.
    pub(crate) fn pass_written<M: Memory>(
        &self,
        offset: u64,
        length: u64,
        (payload, skip): (&Payload<'_>, u64),
        memory: &M,
    ) -> Result<(), Unmapped> {
        let format = self.format.as_ref().ok_or(Unmapped)?;
        for (block, part, place) in format.tails(offset, length) {
            let mut source = None;
            if let Some(from) = &format.wire {
                let mut piece = Pi::default();
                payload.peek(skip + place, &mut piece[part.clone()], memory)?;
                let Some(pi) = self.complete(block, part, piece) else {
                    continue;
                };
                self.check(format, block, pi, from, memory)?;
                source = Some((pi, from));
            }
            if let Some(to) = &format.memory {
                let pi = self.converted(format, block, source, to, memory)?;
                self.write_metadata(block, pi, memory)?;
            }
        }
        Ok(())
    }

    /// Takes a part of the PI of a block, and returns all of it when it is complete.
    fn complete(&self, block: u64, part: Range<usize>, piece: Pi) -> Option<Pi> {
        let mut unfinished = self.unfinished.get();
        if unfinished.block != block {
            unfinished = Unfinished {
                block,
                ..Unfinished::default()
            };
        }
        for byte in part {
            unfinished.pi[byte] = piece[byte];
            unfinished.written |= 1 << byte;
        }
        let is_complete = unfinished.written == u8::MAX;
        self.unfinished.set(if is_complete {
            Unfinished::default()
        } else {
            unfinished
        });
        is_complete.then_some(unfinished.pi)
    }

    /// Returns the PI of a block in the domain `to`. `source` is its PI in the other domain, if that has any.
    fn converted<M: Memory>(
        &self,
        format: &Format,
        block: u64,
        source: Option<(Pi, &Protection)>,
        to: &Protection,
        memory: &M,
    ) -> Result<Pi, Unmapped> {
        let copies = |same: fn(&Protection, &Protection) -> bool| {
            source.is_some_and(|(_, from)| same(from, to))
        };
        let excused = source.is_some_and(|(pi, from)| from.excuses(pi));
        let mut pi = source.map_or(Pi::default(), |(pi, _)| pi);
        if !copies(|from, to| from.guard == to.guard && from.seed == to.seed) {
            let guard = self.guard(format, block, to, memory)?;
            pi[GUARD].copy_from_slice(&guard.to_be_bytes());
        }
        if !excused && !copies(|from, to| from.app_tag == to.app_tag) {
            pi[APP_TAG].copy_from_slice(&to.app_tag.to_be_bytes());
        }
        let same_ref = |from: &Protection, to: &Protection| {
            let increments = |of: &Protection| of.has(domain_flags::REF_INCREMENT);
            from.ref_tag == to.ref_tag && increments(from) == increments(to)
        };
        if !excused && !copies(same_ref) {
            pi[REF_TAG].copy_from_slice(&to.ref_tag(block).to_be_bytes());
        }
        Ok(pi)
    }

    /// Compares the PI of a block with what it should be, and reports the first difference of the registration.
    fn check<M: Memory>(
        &self,
        format: &Format,
        block: u64,
        pi: Pi,
        source: &Protection,
        memory: &M,
    ) -> Result<(), Unmapped> {
        let mut mask = format.mask;
        for (mask, tag) in mask[APP_TAG].iter_mut().zip(source.app_mask.to_be_bytes()) {
            *mask &= tag;
        }
        if self.reported.get() || mask == Pi::default() || source.excuses(pi) {
            return Ok(());
        }
        let mut expected = pi;
        if mask[GUARD] != [0; 2] {
            let guard = self.guard(format, block, source, memory)?;
            expected[GUARD].copy_from_slice(&guard.to_be_bytes());
        }
        expected[APP_TAG].copy_from_slice(&source.app_tag.to_be_bytes());
        expected[REF_TAG].copy_from_slice(&source.ref_tag(block).to_be_bytes());
        let differs =
            |place: &Range<usize>| place.clone().any(|i| (pi[i] ^ expected[i]) & mask[i] != 0);
        let fields = [
            (GUARD, IntegrityError::Guard),
            (REF_TAG, IntegrityError::RefTag),
            (APP_TAG, IntegrityError::AppTag),
        ];
        if let Some((place, error)) = fields.into_iter().find(|(place, _)| differs(place)) {
            let number = |pi: &Pi| {
                pi[place.clone()]
                    .iter()
                    .fold(0u32, |n, &b| n << 8 | u32::from(b))
            };
            let status = IntegrityStatus {
                key: format.key.into(),
                offset: (block * (format.interval + PI_LENGTH as u64)).into(),
                expected: number(&expected).into(),
                actual: number(&pi).into(),
                ..IntegrityStatus::default()
            };
            self.report(&status, error, memory);
        }
        Ok(())
    }

    /// Reports a block that differs. If the table is gone, nobody can be told.
    fn report<M: Memory>(&self, status: &IntegrityStatus, error: IntegrityError, memory: &M) {
        self.reported.set(true);
        let word = size_of::<u32>();
        let rest = self
            .status
            .slice(word as u64, (size_of_val(status) - word) as u64);
        let written = rest.map(|rest| memory.write(rest, &status.as_bytes()[word..]));
        if written == Some(Ok(())) {
            let _ = memory.store_u32(self.status, 0, error.raw());
        }
    }

    /// Returns the guard of a block as it is in memory now.
    fn guard<M: Memory>(
        &self,
        format: &Format,
        block: u64,
        of: &Protection,
        memory: &M,
    ) -> Result<u16, Unmapped> {
        let mut sum = Sum::new(of.guard, of.seed);
        let mut bytes = [0; PIECE as usize];
        let mut offset = block * format.interval;
        let end = offset + format.interval;
        while offset < end {
            let length = PIECE.min(end - offset);
            let range = self.data.part(offset, length).ok_or(Unmapped)?;
            let bytes = &mut bytes[..range.length as usize];
            memory.read_payload(range, bytes)?;
            sum.add(bytes);
            offset += range.length;
        }
        // A replay does not know the block.
        let mut guard = sum.finish().to_be_bytes();
        memory.interpret(&mut guard)?;
        Ok(u16::from_be_bytes(guard))
    }

    fn read_metadata<M: Memory>(
        &self,
        block: u64,
        pi: &mut Pi,
        memory: &M,
    ) -> Result<(), Unmapped> {
        self.each_part_of_pi(block, |range, place| memory.read(range, &mut pi[place]))
    }

    fn write_metadata<M: Memory>(&self, block: u64, pi: Pi, memory: &M) -> Result<(), Unmapped> {
        self.each_part_of_pi(block, |range, place| memory.write(range, &pi[place]))
    }

    /// Calls `each` with the host ranges of the PI of a block in memory, and the part of the PI that each has.
    fn each_part_of_pi(
        &self,
        block: u64,
        mut each: impl FnMut(HostRange, Range<usize>) -> Result<(), Unmapped>,
    ) -> Result<(), Unmapped> {
        let start = block * PI_LENGTH as u64;
        let mut done = 0;
        while done < PI_LENGTH {
            let left = (PI_LENGTH - done) as u64;
            let range = self.metadata.part(start + done as u64, left);
            let range = range.ok_or(Unmapped)?;
            let end = done + range.length as usize;
            each(range, done..end)?;
            done = end;
        }
        Ok(())
    }
}

/// Reads elements of a table, and replaces `buffer` by their memory.
fn read_elements<M: Memory>(
    table: &Buffer,
    places: Range<u32>,
    buffer: &mut Buffer,
    memory: &M,
) -> Result<(), Cause> {
    let mut builder = BufferBuilder::reusing(std::mem::take(buffer));
    for place in places {
        let mut element = IntegrityElement::default();
        let offset = ELEMENTS_OFFSET as u64 + u64::from(place) * ELEMENT_LENGTH as u64;
        let range = table.contiguous(offset, ELEMENT_LENGTH as u64);
        range
            .and_then(|range| memory.read(range, element.as_mut_bytes()).ok())
            .ok_or(Cause::RegisterTable)?;
        let length = element.length.get();
        if length == 0 {
            return Err(Cause::IntegrityElements);
        }
        let range = memory.resolve(GuestAddress(element.address.get()), length.into());
        builder.push(range.ok_or(Cause::PageUnmapped)?);
    }
    *buffer = builder.finish_for_reuse();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(wire: bool) -> Format {
        let protected = IntegrityDomain {
            guard: integrity::Guard::Crc.raw(),
            ..IntegrityDomain::default()
        };
        let mut wanted = IntegrityTarget {
            interval: 512.into(),
            memory: protected,
            ..IntegrityTarget::default()
        };
        if wire {
            wanted.wire = protected;
        }
        Format::new(&wanted).expect("a valid format")
    }

    #[test]
    fn tails_are_the_ends_of_blocks() {
        let tails = |wire, offset, length| format(wire).tails(offset, length).collect::<Vec<_>>();
        assert!(tails(true, 0, 512).is_empty());
        assert_eq!(tails(true, 0, 520), [(0, 0..8, 512)]);
        assert_eq!(tails(true, 515, 3), [(0, 3..6, 0)]);
        assert_eq!(tails(true, 515, 517), [(0, 3..8, 0)]);
        let expected = [(0, 3..8, 0), (1, 0..1, 517)];
        assert_eq!(tails(true, 515, 518), expected);
        assert!(tails(true, 520, 0).is_empty());
        assert!(tails(false, 0, 511).is_empty());
        assert_eq!(tails(false, 511, 1), [(0, 0..1, 0)]);
        let expected = [(0, 0..1, 411), (1, 0..1, 923)];
        assert_eq!(tails(false, 100, 924), expected);
    }

    #[test]
    fn every_bad_format_is_refused() {
        type Change = fn(&mut IntegrityTarget);
        let good = IntegrityTarget {
            interval: 512.into(),
            wire: IntegrityDomain {
                guard: integrity::Guard::Ip.raw(),
                ..IntegrityDomain::default()
            },
            ..IntegrityTarget::default()
        };
        assert!(Format::new(&good).is_ok());
        let changes: [Change; 9] = [
            |t| t.interval = 0.into(),
            |t| t.interval = 504.into(),
            |t| t.interval = 516.into(),
            |t| t.interval = (MAX_INTERVAL + 8).into(),
            |t| t.interval = u16::MAX.into(),
            |t| t.wire.guard = 0,
            |t| t.wire.guard = 3,
            |t| t.memory.guard = 0xff,
            |t| t.memory.flags = 8,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut bad = good;
            change(&mut bad);
            let result = Format::new(&bad).err();
            assert_eq!(result, Some(Cause::IntegrityFormat), "change {index}");
        }
    }
}
