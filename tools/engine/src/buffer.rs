// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Buffers in guest memory.

use crate::memory::{HostRange, RegionId};
use serde::{Deserialize, Serialize};

/// A run of bytes that is contiguous on the host. It ends where the next extent begins.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Extent {
    /// Byte offset in the buffer.
    start: u64,
    /// Byte offset in the block of guest memory.
    offset: u64,
    /// The block.
    region: RegionId,
}

/// A buffer in guest memory, as the smallest possible number of host ranges.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Buffer {
    extents: Vec<Extent>,
    length: u64,
}

impl Buffer {
    /// Returns the length in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of host ranges.
    pub(crate) fn translations(&self) -> usize {
        self.extents.len()
    }

    /// Returns the index of the extent with the byte at `offset`.
    fn find(&self, offset: u64) -> Option<usize> {
        if self.extents.len() == 1 {
            return Some(0);
        }
        self.extents
            .partition_point(|extent| extent.start <= offset)
            .checked_sub(1)
    }

    /// Returns the host range of an extent from `offset` in the buffer on.
    fn rest(&self, index: usize, offset: u64) -> Option<HostRange> {
        let extent = self.extents.get(index)?;
        let end = self
            .extents
            .get(index + 1)
            .map_or(self.length, |next| next.start);
        let skip = offset.checked_sub(extent.start)?;
        Some(HostRange {
            region: extent.region,
            offset: extent.offset + skip,
            length: end.checked_sub(offset)?,
        })
    }

    /// Returns all host ranges.
    pub(crate) fn all(&self) -> impl Iterator<Item = HostRange> {
        let starts = self.extents.iter().map(|extent| extent.start);
        (starts.enumerate()).filter_map(|(index, start)| self.rest(index, start))
    }

    /// Returns the host range of the `length` bytes at `offset`, or `None` if they are not all in one.
    pub(crate) fn contiguous(&self, offset: u64, length: u64) -> Option<HostRange> {
        let rest = self.rest(self.find(offset)?, offset)?;
        rest.slice(0, length)
    }

    /// Returns the first host range of the `length` bytes at `offset`, which is not empty if `length` is not 0. `None`
    /// if they begin beyond the buffer.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Option<HostRange> {
        let rest = self.rest(self.find(offset)?, offset)?;
        let length = rest.length.min(length);
        (rest.length > 0).then_some(HostRange { length, ..rest })
    }

    /// Appends the host ranges of the `length` bytes at `offset` to `ranges`. If they exceed the buffer, appends
    /// nothing and returns `None`.
    pub(crate) fn ranges(
        &self,
        mut offset: u64,
        mut length: u64,
        ranges: &mut Vec<HostRange>,
    ) -> Option<()> {
        if offset.checked_add(length)? > self.length {
            return None;
        }
        if length == 0 {
            return Some(());
        }
        let mut index = self.find(offset)?;
        while length > 0 {
            let mut range = self.rest(index, offset)?;
            range.length = range.length.min(length);
            offset += range.length;
            length -= range.length;
            index += 1;
            ranges.push(range);
        }
        Some(())
    }
}

/// Builds a buffer, range by range.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct BufferBuilder {
    extents: Vec<Extent>,
    last: Option<HostRange>,
    length: u64,
}

impl BufferBuilder {
    /// Creates a builder that reuses the allocation of a buffer.
    pub(crate) fn reusing(buffer: Buffer) -> Self {
        let mut extents = buffer.extents;
        extents.clear();
        Self {
            extents,
            ..Self::default()
        }
    }

    /// Appends a range, which must not be empty.
    pub(crate) fn push(&mut self, range: HostRange) {
        match &mut self.last {
            Some(last) if last.is_followed_by(&range) => last.length += range.length,
            last => {
                self.extents.push(Extent {
                    start: self.length,
                    offset: range.offset,
                    region: range.region,
                });
                *last = Some(range);
            }
        }
        self.length += range.length;
    }

    /// Returns the number of host ranges so far.
    pub(crate) fn translations(&self) -> usize {
        self.extents.len()
    }

    /// Returns the buffer, without spare capacity.
    pub(crate) fn finish(mut self) -> Buffer {
        self.extents.shrink_to_fit();
        self.finish_for_reuse()
    }

    /// Returns the buffer, with its spare capacity for [`reusing`](Self::reusing).
    pub(crate) fn finish_for_reuse(self) -> Buffer {
        Buffer {
            extents: self.extents,
            length: self.length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(region: u32, offset: u64, length: u64) -> HostRange {
        HostRange {
            region: RegionId(region),
            offset,
            length,
        }
    }

    fn buffer() -> Buffer {
        let mut builder = BufferBuilder::default();
        builder.push(range(0, 100, 50));
        builder.push(range(0, 150, 50));
        builder.push(range(0, 50, 50));
        builder.push(range(1, 100, 10));
        builder.finish()
    }

    #[test]
    fn neighbours_become_one() {
        assert_eq!(buffer().translations(), 3);
        assert_eq!(buffer().length(), 160);
    }

    #[test]
    fn ranges_follow_the_extents() {
        let mut ranges = Vec::new();
        assert!(buffer().ranges(90, 65, &mut ranges).is_some());
        assert_eq!(
            ranges,
            [range(0, 190, 10), range(0, 50, 50), range(1, 100, 5)]
        );
        ranges.clear();
        assert!(buffer().ranges(160, 0, &mut ranges).is_some());
        assert!(ranges.is_empty());
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let mut ranges = Vec::new();
        assert!(buffer().ranges(100, 61, &mut ranges).is_none());
        assert!(buffer().ranges(u64::MAX, 2, &mut ranges).is_none());
        assert!(buffer().ranges(161, 0, &mut ranges).is_none());
        assert!(ranges.is_empty());
        assert_eq!(buffer().contiguous(100, 50), Some(range(0, 50, 50)));
        assert_eq!(buffer().contiguous(100, 51), None);
        assert_eq!(buffer().contiguous(150, 11), None);
        assert_eq!(buffer().contiguous(u64::MAX, 1), None);
    }
}
