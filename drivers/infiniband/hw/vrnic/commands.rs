// SPDX-License-Identifier: GPL-2.0

//! Objects on the device, as commands create them, and page lists, by which commands name memory.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};

use kernel::{
    dma::DmaAddress,
    prelude::*,
    sync::Arc, //
};
use virtio::{
    Dma,
    SharedMemory, //
};
use vrnic_wire::{
    command::{
        reregister_flags,
        AllocateMr,
        AllocateMw,
        Command,
        CreateContext,
        CreateCq,
        CreatePd,
        CreateQp,
        CreateSrq,
        DeallocateMw,
        DeregisterMr,
        DestroyContext,
        DestroyCq,
        DestroyPd,
        DestroyQp,
        DestroySrq,
        Empty,
        RegisterMr,
        ReregisterMr, //
    },
    memory::{
        PageList,
        PageListChunk,
        CHUNK_PAGES,
        CHUNK_SIZE, //
    }, //
};

use crate::control::Control;

/// A command that destroys an object.
pub(crate) trait Destroy: Command<Reply = Empty> + Send + Sync {
    /// What the object is called.
    const OBJECT: &'static str;

    /// Whether asynchronous events name such objects.
    const HAS_EVENTS: bool;

    /// Number or key of the object.
    fn number(&self) -> u32;
}

macro_rules! destroy {
    ($($command:ident { $number:ident } $object:literal, events: $events:literal;)*) => {
        $(impl Destroy for $command {
            const OBJECT: &'static str = $object;
            const HAS_EVENTS: bool = $events;

            fn number(&self) -> u32 {
                self.$number.get()
            }
        })*
    };
}

destroy! {
    DestroyContext { context } "context", events: false;
    DestroyPd { pd } "protection domain", events: false;
    DestroyCq { cqn } "completion queue", events: true;
    DestroyQp { qpn } "queue pair", events: true;
    DestroySrq { srqn } "shared receive queue", events: true;
    DeregisterMr { key } "memory region", events: false;
    DeallocateMw { key } "memory window", events: false;
}

/// An object on the device, which exists as long as this value: dropping it destroys the object.
pub(crate) struct Object<D: Destroy> {
    control: Arc<Control>,
    command: D,
    alive: AtomicBool,
}

impl<D: Destroy> Object<D> {
    fn new(control: &Arc<Control>, command: D) -> Self {
        Self {
            control: control.clone(),
            command,
            alive: AtomicBool::new(true),
        }
    }

    /// Number or key of the object.
    pub(crate) fn number(&self) -> u32 {
        self.command.number()
    }

    /// The device, as one gives it commands.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Destroys the object. Sleeps.
    ///
    /// On return the device has let go of everything that belonged to the object. A device that
    /// refuses is stopped: the kernel has done with the object, and frees its memory next.
    pub(crate) fn destroy(&self) {
        if let Err(err) = self.try_destroy() {
            self.refused(err);
        }
    }

    /// The device refuses to let go of the object, so it is stopped.
    fn refused(&self, err: Error) {
        let health = self.control.health();
        dev_err!(
            health.dev(),
            "{} {} cannot be destroyed: {:?}\n",
            D::OBJECT,
            self.number(),
            err
        );
        self.control.fail("it does not let go of an object");
    }

    /// Destroys the object unless it is in use (`EBUSY`). Sleeps.
    ///
    /// On success the device has let go of everything that belonged to the object. So it has when
    /// it failed, for then it was stopped, as it is for any other reason to refuse: nobody could
    /// ever end that. On an error the object is as before.
    pub(crate) fn try_destroy(&self) -> Result {
        if !self.alive.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        match self.control.execute_surely(&self.command) {
            Ok(Empty {}) => {
                if D::HAS_EVENTS {
                    self.control.flush_events();
                }
                Ok(())
            }
            Err(_) if self.control.is_stopped() => Ok(()),
            Err(EBUSY) => {
                self.alive.store(true, Ordering::Relaxed);
                Err(EBUSY)
            }
            Err(err) => {
                self.refused(err);
                Ok(())
            }
        }
    }
}

impl<D: Destroy> Drop for Object<D> {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Creates a context, and returns it with its doorbell page.
pub(crate) fn create_context(
    control: &Arc<Control>,
    request: &CreateContext,
) -> Result<(Object<DestroyContext>, u32)> {
    let reply = control.execute(request)?;
    let destroy = DestroyContext {
        context: reply.context,
        ..Default::default()
    };
    Ok((Object::new(control, destroy), reply.doorbell_page.get()))
}

/// Creates a protection domain in a context.
pub(crate) fn create_pd(control: &Arc<Control>, context: u32) -> Result<Object<DestroyPd>> {
    let reply = control.execute(&CreatePd {
        context: context.into(),
        ..Default::default()
    })?;
    let destroy = DestroyPd {
        pd: reply.pd,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Creates a completion queue.
pub(crate) fn create_cq(control: &Arc<Control>, request: &CreateCq) -> Result<Object<DestroyCq>> {
    let reply = control.execute(request)?;
    let destroy = DestroyCq {
        cqn: reply.cqn,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Creates a queue pair, and returns it with its doorbell slot.
pub(crate) fn create_qp(
    control: &Arc<Control>,
    request: &CreateQp,
) -> Result<(Object<DestroyQp>, u32)> {
    let reply = control.execute(request)?;
    let destroy = DestroyQp {
        qpn: reply.qpn,
        ..Default::default()
    };
    Ok((Object::new(control, destroy), reply.slot.get()))
}

/// Creates a shared receive queue.
pub(crate) fn create_srq(
    control: &Arc<Control>,
    request: &CreateSrq,
) -> Result<Object<DestroySrq>> {
    let reply = control.execute(request)?;
    let destroy = DestroySrq {
        srqn: reply.srqn,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Registers a memory region; its number is its key.
pub(crate) fn register_mr(
    control: &Arc<Control>,
    request: &RegisterMr,
) -> Result<Object<DeregisterMr>> {
    let reply = control.execute(request)?;
    let destroy = DeregisterMr {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}

/// Changes a memory region, whose number may be another afterwards. `request` names the region by
/// nothing yet.
pub(crate) fn reregister_mr(mr: &mut Object<DeregisterMr>, request: &ReregisterMr) -> Result {
    let reply = mr.control.execute(&ReregisterMr {
        pd: mr.command.pd,
        key: mr.command.key,
        ..*request
    })?;
    mr.command.key = reply.key;
    if request.flags.get() & reregister_flags::PD != 0 {
        mr.command.pd = request.new_pd;
    }
    Ok(())
}

/// Allocates a memory window; its number is its first key.
pub(crate) fn allocate_mw(
    control: &Arc<Control>,
    request: &AllocateMw,
) -> Result<Object<DeallocateMw>> {
    let reply = control.execute(request)?;
    let destroy = DeallocateMw {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}

/// Allocates a memory region for fast registration; its number is its first key.
pub(crate) fn allocate_mr(
    control: &Arc<Control>,
    request: &AllocateMr,
) -> Result<Object<DeregisterMr>> {
    let reply = control.execute(request)?;
    let destroy = DeregisterMr {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}

/// A page list in memory that the device can read, for as long as a command needs it.
pub(crate) struct PageListBuffer {
    list: PageList,
    _chunks: SharedMemory,
}

impl PageListBuffer {
    /// Writes a list of `pages` of two to the power of `page_shift` bytes.
    ///
    /// The buffer is `length` bytes, `offset` bytes into the first page. `EINVAL` if that does not
    /// fit the number of pages.
    pub(crate) fn new(
        dma: &Dma,
        pages: impl ExactSizeIterator<Item = DmaAddress>,
        page_shift: u8,
        offset: u64,
        length: u64,
    ) -> Result<Self> {
        let count = pages.len();
        if needed_pages(page_shift, offset, length) != Some(count as u64) {
            return Err(EINVAL);
        }

        let chunk_count = count.div_ceil(CHUNK_PAGES);
        let chunks = SharedMemory::new(dma, chunk_count * CHUNK_SIZE)?;
        write_chunks(chunks.dma_pages(), pages, |offset, word| {
            chunks.write(offset, &word.to_le_bytes())
        })?;

        let first_chunk = chunks.dma_pages().next().ok_or(EINVAL)?;
        Ok(Self {
            list: PageList {
                first_chunk: first_chunk.into(),
                offset: offset.into(),
                length: length.into(),
                page_count: u32::try_from(count)?.into(),
                page_shift,
                reserved: [0; 3],
            },
            _chunks: chunks,
        })
    }

    /// A list of all of `memory`.
    pub(crate) fn of_shared(dma: &Dma, memory: &SharedMemory) -> Result<Self> {
        const SHIFT: u8 = SharedMemory::PAGE_SIZE.ilog2() as u8;

        Self::new(dma, memory.dma_pages(), SHIFT, 0, memory.len() as u64)
    }

    /// The list, as commands name it.
    pub(crate) fn list(&self) -> PageList {
        self.list
    }
}

/// Pages that `length` bytes take which begin `offset` bytes into the first.
fn needed_pages(page_shift: u8, offset: u64, length: u64) -> Option<u64> {
    let page = 1u64.checked_shl(page_shift.into())?;
    if length == 0 || offset >= page {
        return None;
    }
    Some(offset.checked_add(length)?.div_ceil(page))
}

/// Writes the chunks of a list of `pages`.
///
/// `addresses` are those of the chunks; `write` stores a word at an offset from the first, as if
/// they followed each other.
fn write_chunks(
    mut addresses: impl ExactSizeIterator<Item = DmaAddress>,
    mut pages: impl ExactSizeIterator<Item = DmaAddress>,
    mut write: impl FnMut(usize, u64) -> Result,
) -> Result {
    // `PageListChunk` on the stack would be a whole page.
    const HEADER: usize = core::mem::offset_of!(PageListChunk, pages);
    const WORD: usize = size_of::<u64>();

    for chunk in (0..addresses.len()).map(|i| i * CHUNK_SIZE) {
        let count = pages.len().min(CHUNK_PAGES);

        // The address of this chunk is in the one before, that of the first in the command.
        let address = addresses.next().ok_or(EINVAL)?;
        if let Some(previous) = chunk.checked_sub(CHUNK_SIZE) {
            write(previous, address)?;
        }
        write(chunk + WORD, count as u64)?;
        for (i, page) in pages.by_ref().take(count).enumerate() {
            write(chunk + HEADER + i * WORD, page)?;
        }
    }
    Ok(())
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_commands)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_as_the_standard_says() {
        assert_eq!(needed_pages(12, 0, 1), Some(1));
        assert_eq!(needed_pages(12, 4095, 1), Some(1));
        assert_eq!(needed_pages(12, 4095, 2), Some(2));
        assert_eq!(needed_pages(12, 0, 8192), Some(2));
        assert_eq!(needed_pages(21, 4096, 1 << 21), Some(2));
        assert_eq!(needed_pages(12, 4096, 1), None);
        assert_eq!(needed_pages(12, 0, 0), None);
        assert_eq!(needed_pages(64, 0, 1), None);
        assert_eq!(needed_pages(12, 1, u64::MAX), None);
    }

    #[test]
    fn a_long_list_is_a_chain_of_chunks() -> Result {
        const COUNT: usize = CHUNK_PAGES + 3;

        let mut memory = KVec::from_elem(0u8, 2 * CHUNK_SIZE, GFP_KERNEL)?;
        write_chunks(
            [0xa000, 0xc000].into_iter(),
            (0..COUNT).map(|i| (i as u64 + 1) << 12),
            |offset, word| {
                let end = offset + size_of::<u64>();
                let to = memory.get_mut(offset..end).ok_or(EINVAL)?;
                to.copy_from_slice(&word.to_le_bytes());
                Ok(())
            },
        )?;

        let (first, rest) = PageListChunk::ref_from_prefix(&memory).map_err(|_| EINVAL)?;
        let (second, _) = PageListChunk::ref_from_prefix(rest).map_err(|_| EINVAL)?;
        assert_eq!(first.next.get(), 0xc000);
        assert_eq!(first.count.get(), 510);
        assert_eq!(first.reserved.get(), 0);
        assert_eq!(first.pages[0].get(), 1 << 12);
        assert_eq!(first.pages[509].get(), 510 << 12);
        assert_eq!(second.next.get(), 0);
        assert_eq!(second.count.get(), 3);
        assert_eq!(second.pages[2].get(), 513 << 12);
        assert_eq!(second.pages[3].get(), 0);
        Ok(())
    }
}
