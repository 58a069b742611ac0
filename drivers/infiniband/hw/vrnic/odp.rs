// SPDX-License-Identifier: GPL-2.0

//! Memory regions whose pages are not kept in place.
//!
//! The device asks for pages by an event, and a work item of the region serves it: it brings the
//! pages in and gives them to the device. What the process or the kernel does to its memory takes
//! them back. Both are done by commands under the mutex of the memory, which is taken to reclaim
//! memory, too; so these commands have memory of their own ([`PageCommands`]). The region is
//! destroyed under that mutex as well: no command for it comes later, when the device may have
//! given its key to another region.

use core::{
    ops::Range,
    ptr,
    sync::atomic::{
        AtomicU32,
        Ordering, //
    },
};

use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        ArcBorrow,
        Mutex, //
    },
    xarray::{
        AllocKind,
        XArray, //
    }, //
};
use rdma::{
    access::{
        Access,
        AccessFlags, //
    },
    mr::{
        self,
        Advice, //
    },
    odp::{
        AddressSpace,
        Memory,
        OnDemand,
        Page,
        Pager, //
    },
    wr::Sge, //
};
use virtio::{
    Dma,
    SharedMemory, //
};
use vrnic_wire::{
    command::{
        fault_flags,
        mr_flags,
        AttachRegion,
        DeregisterMr,
        Empty,
        MapPages,
        PageFault,
        RefusePages,
        RegisterMr,
        TakePageFault,
        UnmapPages, //
    },
    memory::{
        page_flags,
        PageList,
        TABLE_ENTRY_LENGTH,
        TABLE_PAGES, //
    }, //
};

use crate::{
    control::{
        Control,
        Prepared, //
    },
    device::Call,
    mr::{
        first_address,
        may_have_windows, //
    },
    object::{
        create,
        Object, //
    }, //
};

/// Times that pages are looked up while the process changes its memory too fast.
const PATIENCE: u32 = 10;

/// Binary logarithm of the bytes of a piece of an address space, which is a region of its own.
const PIECE_SHIFT: u8 = 30;

/// Bytes of a piece.
const PIECE: usize = 1 << PIECE_SHIFT;

/// Pieces of an address space: more than any process has addresses, unless it asks for them.
const PIECES: u32 = 1 << (48 - PIECE_SHIFT);

/// Advice that waits for a region's work item; more is acted on at once.
const MAX_WISHES: usize = 256;

/// How a device asks for pages, is given them and made to forget them, without taking memory.
#[pin_data]
pub(crate) struct PageCommands {
    control: Arc<Control>,
    /// Held while the device has one of the commands. No memory is taken under it.
    #[pin]
    slots: Mutex<Slots>,
}

/// The commands, and the table that one of them names.
struct Slots {
    take: Prepared<TakePageFault>,
    map: Prepared<MapPages>,
    refuse: Prepared<RefusePages>,
    unmap: Prepared<UnmapPages>,
    table: SharedMemory,
}

impl PageCommands {
    pub(crate) fn new(dma: &Dma, control: &Arc<Control>) -> Result<Arc<Self>> {
        let slots = Slots {
            take: Prepared::new()?,
            map: Prepared::new()?,
            refuse: Prepared::new()?,
            unmap: Prepared::new()?,
            table: SharedMemory::new(dma, TABLE_PAGES * TABLE_ENTRY_LENGTH)?,
        };
        Arc::pin_init(
            pin_init!(Self {
                control: control.clone(),
                slots <- new_mutex!(slots),
            }),
            GFP_KERNEL,
        )
    }

    /// What a region waits for.
    fn take(&self, (pd, key): (u32, u32)) -> Result<PageFault> {
        let request = TakePageFault {
            pd: pd.into(),
            key: key.into(),
        };
        self.slots.lock().take.execute(&self.control, &request)
    }

    /// Gives pages to a region, from `first` on, at most [`TABLE_PAGES`].
    fn map(
        &self,
        (pd, key): (u32, u32),
        first: usize,
        pages: &mut dyn Iterator<Item = Result<Option<Page>>>,
    ) -> Result {
        let mut slots = self.slots.lock();
        let Slots { map, table, .. } = &mut *slots;
        let mut count = 0;
        for page in pages.take(TABLE_PAGES) {
            let entry = match page? {
                Some(Page { address, writable }) => {
                    let writable = if writable { page_flags::WRITABLE } else { 0 };
                    address | page_flags::PRESENT | writable
                }
                None => 0,
            };
            table.write(count * TABLE_ENTRY_LENGTH, &entry.to_le_bytes())?;
            count += 1;
        }
        let request = MapPages {
            pd: pd.into(),
            key: key.into(),
            first_page: u32::try_from(first)?.into(),
            page_count: u32::try_from(count)?.into(),
            table: table.dma_pages().next().ok_or(EINVAL)?.into(),
        };
        map.execute(&self.control, &request).map(|Empty {}| ())
    }

    /// Tells a region that there is no such page.
    fn refuse(&self, (pd, key): (u32, u32), page: usize) -> Result {
        let request = RefusePages {
            pd: pd.into(),
            key: key.into(),
            first_page: u32::try_from(page)?.into(),
            page_count: 1.into(),
        };
        let mut slots = self.slots.lock();
        let Empty {} = slots.refuse.execute(&self.control, &request)?;
        Ok(())
    }

    /// Has the device forget pages of a region. On return it does not access them.
    fn unmap(&self, (pd, key): (u32, u32), pages: &Range<usize>) {
        // CAST: The device took a region of so many pages.
        let request = UnmapPages {
            pd: pd.into(),
            key: key.into(),
            first_page: (pages.start as u32).into(),
            page_count: (pages.len() as u32).into(),
        };
        let result = self.slots.lock().unmap.execute(&self.control, &request);
        match result {
            Ok(Empty {}) => {}
            // One that has failed is stopped when that is said.
            Err(_) if self.control.is_stopped() => {}
            Err(err) => {
                let health = self.control.health();
                dev_err!(health.dev(), "pages cannot be taken back: {:?}\n", err);
                self.control.fail("it does not let go of pages");
            }
        }
    }
}

/// Pages that somebody wants a region to have.
struct Wish {
    pages: Range<usize>,
    write: bool,
    fault: bool,
}

/// What the driver keeps for the memory of a region.
#[pin_data]
struct RegionPager {
    commands: Arc<PageCommands>,
    pd: u32,
    /// Address by which work requests name the first byte.
    iova: u64,
    /// Whether anybody may write to it.
    writable: bool,
    /// Key of the region; 0 before the device has it, and after. Cleared under the mutex of the
    /// memory.
    key: AtomicU32,
    #[pin]
    wishes: Mutex<KVec<Wish>>,
    /// Set for a region of all of an address space. What is watched of it is of no use then.
    space: Option<Pin<KBox<Space>>>,
}

/// A region of all of an address space. The device asks for its pieces as for pages.
#[pin_data]
struct Space {
    addresses: AddressSpace,
    writable: bool,
    faults: Arc<Faults>,
    /// Regions of the pieces that the device asked for, by their numbers; [`None`] once the region
    /// is gone.
    #[pin]
    pieces: Mutex<Option<RBTree<u32, Paged>>>,
}

impl Space {
    /// The memory of a piece of the region of `pager`, which becomes a region if it is none.
    fn piece(&self, pager: &RegionPager, number: u32) -> Result<Watched> {
        let (pd, key) = pager.region()?;
        let mut pieces = self.pieces.lock();
        let pieces = Option::as_mut(&mut *pieces).ok_or(ENOENT)?;
        if let Some(piece) = pieces.get(&number) {
            return Ok(piece.memory.clone());
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let address = u64::from(number) << PIECE_SHIFT;
        let own = BoxedPager::new(&pager.commands, pd, address, self.writable, None)?;
        let memory = Arc::new(self.addresses.watch(address, PIECE, own)?, GFP_KERNEL)?;
        // Whoever accesses it does so by the rights of the whole.
        let request = RegisterMr {
            pd: pd.into(),
            iova: address.into(),
            ..Default::default()
        };
        let range = mr::Range {
            start: address,
            length: PIECE as u64,
            iova: address,
        };
        let nothing = AccessFlags::default();
        let piece = Paged::create(&self.faults, memory, request, range, nothing)?;
        let Empty {} = pager.commands.control.execute(&AttachRegion {
            pd: pd.into(),
            key: key.into(),
            page: number.into(),
            region: piece.key().into(),
        })?;
        let memory = piece.memory.clone();
        pieces.insert(node.into_node(number, piece));
        Ok(memory)
    }
}

/// A pager that can be moved into place.
pub(crate) struct BoxedPager(Pin<KBox<RegionPager>>);

impl RegionPager {
    /// Domain and key of the region, while the device has it: as long as the mutex of the memory is
    /// held. `ENOENT` if it does not.
    fn region(&self) -> Result<(u32, u32)> {
        match self.key.load(Ordering::Relaxed) {
            0 => Err(ENOENT),
            key => Ok((self.pd, key)),
        }
    }

    /// Gives pages to the device, all that are asked for or none of a batch.
    fn map(&self, memory: &Memory<BoxedPager>, wish: &Wish) -> Result {
        let mut first = wish.pages.start;
        while first < wish.pages.end {
            let end = wish.pages.end.min(first + TABLE_PAGES);
            let mut patience = PATIENCE;
            loop {
                let mapped = memory.map(first..end, wish.write, wish.fault, |pages| {
                    self.commands.map(self.region()?, first, pages)
                });
                patience -= 1;
                match mapped {
                    Err(EBUSY) if patience > 0 => {}
                    other => break other?,
                }
            }
            first = end;
        }
        Ok(())
    }

    /// Answers what the device asks for: with the pages, or, page by page, with those that there
    /// are, and the word that there is no more where there is none.
    fn answer(&self, memory: &Memory<BoxedPager>, wish: &Wish) -> Result {
        let mut first = wish.pages.start;
        while first < wish.pages.end {
            let end = wish.pages.end.min(first + TABLE_PAGES);
            let batch = |pages| Wish { pages, ..*wish };
            if self.map(memory, &batch(first..end)).is_err() {
                for page in first..end {
                    if self.map(memory, &batch(page..page + 1)).is_err() {
                        memory.exclusively(|| self.commands.refuse(self.region()?, page))??;
                    }
                }
            }
            first = end;
        }
        Ok(())
    }

    /// Answers what the device asks for of an address space: with pieces.
    fn answer_pieces(&self, space: &Space, memory: &Memory<BoxedPager>, wish: &Wish) -> Result {
        for number in wish.pages.clone() {
            // CAST: There are not as many pieces.
            if space.piece(self, number as u32).is_err() {
                memory.exclusively(|| self.commands.refuse(self.region()?, number))??;
            }
        }
        Ok(())
    }

    /// Pages that the device knows of the region.
    fn pages(&self, memory: &Memory<BoxedPager>) -> usize {
        match &self.space {
            Some(_) => PIECES as usize,
            None => memory.pages(),
        }
    }

    /// Answers everything that the device asks for.
    fn answer_all(&self, memory: &Memory<BoxedPager>) -> Result {
        loop {
            let fault = memory.exclusively(|| self.commands.take(self.region()?))??;
            let first = fault.first_page.get() as usize;
            let count = fault.page_count.get() as usize;
            if count == 0 {
                return Ok(());
            }
            let end = first.checked_add(count).ok_or(EINVAL)?;
            if end > self.pages(memory) {
                return Err(EINVAL);
            }
            let wish = Wish {
                pages: first..end,
                write: fault.flags.get() & fault_flags::WRITE != 0,
                fault: true,
            };
            match &self.space {
                Some(space) => self.answer_pieces(space, memory, &wish)?,
                None => self.answer(memory, &wish)?,
            }
        }
    }
}

impl BoxedPager {
    /// A pager for a region of `pd` at `iova`, of which the device does not know yet.
    fn new(
        commands: &Arc<PageCommands>,
        pd: u32,
        iova: u64,
        writable: bool,
        space: Option<Pin<KBox<Space>>>,
    ) -> Result<Self> {
        let pager = KBox::pin_init(
            pin_init!(RegionPager {
                commands: commands.clone(),
                pd,
                iova,
                writable,
                key: AtomicU32::new(0),
                wishes <- new_mutex!(KVec::new()),
                space,
            }),
            GFP_KERNEL,
        )?;
        Ok(Self(pager))
    }
}

impl Pager for BoxedPager {
    fn forget(&self, pages: Range<usize>) {
        if self.0.space.is_some() {
            return;
        }
        if let Ok(region) = self.0.region() {
            self.0.commands.unmap(region, &pages);
        }
    }

    fn serve(&self, memory: &Memory<Self>) {
        // The device first: its work waits.
        let answered = self.0.answer_all(memory);
        let wishes = core::mem::take(&mut *self.0.wishes.lock());
        for wish in &wishes {
            // Nobody is told of what cannot be prefetched.
            let _ = self.0.map(memory, wish);
        }
        if let Err(err) = answered {
            let health = self.0.commands.control.health();
            dev_dbg!(health.dev(), "page faults cannot be answered: {:?}\n", err);
        }
    }
}

/// Memory of a process, which is not pinned.
type Watched = Arc<OnDemand<BoxedPager>>;

/// Regions for which the device may ask for pages, by their keys.
#[pin_data]
pub(crate) struct Faults {
    #[pin]
    regions: XArray<Watched>,
    /// Times that the device asked for pages of a region that is not here.
    unknown: AtomicU32,
}

impl Faults {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let faults = pin_init!(Self {
            regions <- XArray::new(AllocKind::Alloc),
            unknown: AtomicU32::new(0),
        });
        Arc::pin_init(faults, GFP_KERNEL)
    }

    /// The device asks for pages of the region with that key. Whether there is one.
    pub(crate) fn serve(&self, key: u32) -> bool {
        let regions = self.regions.lock();
        let region = regions.get(key as usize);
        match &region {
            Some(region) => region.request(),
            // Counted with the lock held: who adds the region later sees it.
            None => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        region.is_some()
    }

    /// The memory of the region of `pd` with that key.
    fn get(&self, pd: u32, key: u32) -> Option<Watched> {
        let regions = self.regions.lock();
        let memory = regions.get(key as usize).map(Watched::from)?;
        (memory.pager().0.pd == pd).then_some(memory)
    }

    /// Gives the device pages before it asks for them. `EINVAL` if a piece is not in such a region
    /// of `pd`, `EPERM` if it is to be written and may not be; nothing is done then.
    pub(crate) fn advise(&self, pd: u32, advice: Advice, wait: bool, pieces: &[Sge]) -> Result {
        let mut found = KVec::with_capacity(pieces.len(), GFP_KERNEL)?;
        for piece in pieces {
            let memory = self.get(pd, piece.lkey()).ok_or(EINVAL)?;
            let pager = &memory.pager().0;
            let write = advice == Advice::PrefetchWrite;
            if write && !pager.writable {
                return Err(EPERM);
            }
            let start = piece.address().checked_sub(pager.iova).ok_or(EINVAL)?;
            let length = u64::from(piece.length());
            let end = start.checked_add(length).ok_or(EINVAL)?;
            let fault = advice != Advice::PrefetchNoFault;
            let wish = |pages| Wish {
                pages,
                write,
                fault,
            };
            let Some(space) = &pager.space else {
                if end > memory.len() as u64 {
                    return Err(EINVAL);
                }
                if length > 0 {
                    // CAST: Within the memory.
                    let pages = pages_of(memory.offset(), start as usize..end as usize);
                    found.push((memory, wish(pages)), GFP_KERNEL)?;
                }
                continue;
            };
            let pieces = pieces_of(start..end).ok_or(EINVAL)?;
            for (number, bytes) in pieces {
                let piece = space.piece(pager, number)?;
                found.push((piece, wish(pages_of(0, bytes))), GFP_KERNEL)?;
            }
        }
        for (memory, wish) in found {
            let pager = &memory.pager().0;
            if wait {
                pager.map(&memory, &wish)?;
                continue;
            }
            let mut wishes = pager.wishes.lock();
            if wishes.len() < MAX_WISHES {
                wishes.push(wish, GFP_KERNEL)?;
                drop(wishes);
                memory.request();
            } else {
                drop(wishes);
                let _ = pager.map(&memory, &wish);
            }
        }
        Ok(())
    }
}

/// The pages of bytes of memory that begins `offset` bytes into its first page.
fn pages_of(offset: usize, bytes: Range<usize>) -> Range<usize> {
    (offset + bytes.start) / PAGE_SIZE..(offset + bytes.end).div_ceil(PAGE_SIZE)
}

/// The pieces of an address space that have these addresses, with the bytes of each that do.
/// [`None`] if there are no such addresses.
fn pieces_of(addresses: Range<u64>) -> Option<impl Iterator<Item = (u32, Range<usize>)>> {
    const SIZE: u64 = PIECE as u64;

    if addresses.end > SIZE * u64::from(PIECES) {
        return None;
    }
    // CAST: There are not as many pieces, and no piece is larger than memory can be.
    let pieces = (addresses.start / SIZE..addresses.end.div_ceil(SIZE)).map(move |number| {
        let first = number * SIZE;
        let start = addresses.start.max(first) - first;
        let end = addresses.end.min(first + SIZE) - first;
        (number as u32, start as usize..end as usize)
    });
    Some(pieces.filter(|(_, bytes)| !bytes.is_empty()))
}

/// A region whose pages are not kept in place. Dropping it destroys it.
pub(crate) struct Paged {
    object: Object<DeregisterMr>,
    memory: Watched,
    faults: Arc<Faults>,
    range: mr::Range,
    access: AccessFlags,
}

impl Paged {
    /// Registers memory with those rights of the device.
    pub(crate) fn register(
        call: &Call<'_>,
        pd: u32,
        range: &mr::Range,
        access: AccessFlags,
        rights: u32,
    ) -> Result<Self> {
        // All of the address space, whatever will be there.
        let is_space = range.start == 0 && range.length == u64::MAX;
        let commands = call.data().paging.as_ref().ok_or(EOPNOTSUPP)?;
        let faults = &call.data().faults;
        let iova = first_address(range.iova, access);
        let writable = access.contains(Access::LocalWrite);
        let (space, start, length) = if is_space {
            if !call.data().nested_paging {
                return Err(EOPNOTSUPP);
            }
            if iova != 0 {
                return Err(EINVAL);
            }
            let addresses = AddressSpace::of_caller(call, access)?;
            let space = pin_init!(Space {
                addresses,
                writable,
                faults: faults.clone(),
                pieces <- new_mutex!(Some(RBTree::new())),
            });
            // What is watched has the work item that makes the pieces.
            (Some(KBox::pin_init(space, GFP_KERNEL)?), 0, PAGE_SIZE)
        } else {
            if range.length == 0 || range.length > call.data().limits.max_mr_size.get() {
                return Err(EINVAL);
            }
            (None, range.start, usize::try_from(range.length)?)
        };
        let pager = BoxedPager::new(commands, pd, iova, writable, space)?;
        let memory = Arc::new(
            OnDemand::new(call, start, length, access, pager)?,
            GFP_KERNEL,
        )?;
        let request = RegisterMr {
            pd: pd.into(),
            access: rights.into(),
            iova: iova.into(),
            ..Default::default()
        };
        Self::create(faults, memory, request, *range, access)
    }

    /// Registers memory, as `request` says, which says nothing of its pages yet.
    fn create(
        faults: &Arc<Faults>,
        memory: Watched,
        request: RegisterMr,
        range: mr::Range,
        access: AccessFlags,
    ) -> Result<Self> {
        let pager = &memory.pager().0;
        let (flags, pages) = match &pager.space {
            Some(_) => (
                mr_flags::ON_DEMAND | mr_flags::NESTED,
                PageList {
                    length: (u64::from(PIECES) << PIECE_SHIFT).into(),
                    page_count: PIECES.into(),
                    page_shift: PIECE_SHIFT,
                    ..Default::default()
                },
            ),
            None => (
                mr_flags::ON_DEMAND,
                PageList {
                    offset: (memory.offset() as u64).into(),
                    length: (memory.len() as u64).into(),
                    page_count: u32::try_from(memory.pages())?.into(),
                    page_shift: const { PAGE_SIZE.ilog2() as u8 },
                    ..Default::default()
                },
            ),
        };
        let unknown = faults.unknown.load(Ordering::Relaxed);
        let (object, _) = create(
            &pager.commands.control,
            &RegisterMr {
                flags: flags.into(),
                pages,
                ..request
            },
        )?;
        let key = object.number();
        // Here it stands for no region.
        if key == 0 {
            return Err(pager.commands.control.nonsense());
        }
        let paged = Self {
            object,
            memory,
            faults: faults.clone(),
            range,
            access,
        };
        paged.memory.pager().0.key.store(key, Ordering::Relaxed);
        // One of the same key is just going away.
        let before = {
            let mut regions = paged.faults.regions.lock();
            regions.store(key as usize, paged.memory.clone(), GFP_KERNEL)
        };
        before.map_err(|error| error.error)?;
        // Work of a process that guesses keys may have asked for pages before there was somebody to
        // tell, and the device does not say so again.
        if faults.unknown.load(Ordering::Relaxed) != unknown {
            paged.memory.request();
        }
        Ok(paged)
    }

    /// Key of the region.
    pub(crate) fn key(&self) -> u32 {
        self.object.number()
    }

    /// What was registered: its protection domain, its memory and its rights.
    pub(crate) fn registered(&self) -> (u32, mr::Range, AccessFlags) {
        (self.object.pd(), self.range, self.access)
    }

    /// Destroys the region, unless windows are bound to it (`EBUSY`).
    pub(crate) fn try_destroy(&self) -> Result {
        let number = &self.memory.pager().0.key;
        let key = self.memory.exclusively(|| {
            self.object.try_destroy(may_have_windows(self.access))?;
            Ok::<_, Error>(number.swap(0, Ordering::Relaxed))
        })??;
        if key == 0 {
            return Ok(());
        }
        if let Some(space) = &self.memory.pager().0.space {
            // The device does not ask for pieces any more, and who makes one finds that it is late.
            let pieces = space.pieces.lock().take();
            drop(pieces);
        }
        let mut regions = self.faults.regions.lock();
        let is_ours = |memory: ArcBorrow<'_, _>| ptr::eq(&*memory, &*self.memory);
        if regions.get(key as usize).is_some_and(is_ours) {
            let memory = regions.remove(key as usize);
            // Dropped after the table is unlocked.
            drop(regions);
            drop(memory);
        }
        Ok(())
    }

    /// Its pages, as the device counts them.
    pub(crate) fn pages(&self) -> u32 {
        // CAST: The device took a region of so many.
        self.memory.pager().0.pages(&self.memory) as u32
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        // If the device refuses, dropping the object says so and stops it.
        let _ = self.try_destroy();
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_odp)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_pages() {
        assert_eq!(pages_of(0, 0..1), 0..1);
        assert_eq!(pages_of(0, 0..PAGE_SIZE), 0..1);
        assert_eq!(pages_of(0, 0..PAGE_SIZE + 1), 0..2);
        assert_eq!(pages_of(1, 0..PAGE_SIZE), 0..2);
        assert_eq!(pages_of(PAGE_SIZE - 1, 1..2), 1..2);
    }

    #[test]
    fn addresses_have_pieces() -> Result {
        const SIZE: u64 = PIECE as u64;

        let of = |addresses| -> Result<KVec<(u32, Range<usize>)>> {
            let mut found = KVec::new();
            for piece in pieces_of(addresses).ok_or(EINVAL)? {
                found.push(piece, GFP_KERNEL)?;
            }
            Ok(found)
        };
        assert!(of(5..5)?.is_empty());
        assert_eq!(*of(5..7)?, [(0, 5..7)]);
        assert_eq!(*of(0..SIZE)?, [(0, 0..PIECE)]);
        assert_eq!(
            *of(2 * SIZE - 1..3 * SIZE + 1)?,
            [(1, PIECE - 1..PIECE), (2, 0..PIECE), (3, 0..1)]
        );
        let end = SIZE * u64::from(PIECES);
        assert_eq!(*of(end - 1..end)?, [(PIECES - 1, PIECE - 1..PIECE)]);
        assert_eq!(of(end - 1..end + 1).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn a_key_that_nobody_has_is_no_fault() -> Result {
        let faults = Faults::new()?;
        assert!(!faults.serve(7));
        assert_eq!(faults.unknown.load(Ordering::Relaxed), 1);
        assert!(faults.get(0, 7).is_none());
        Ok(())
    }
}
