// SPDX-License-Identifier: GPL-2.0

//! Memory regions with on-demand paging.
//!
//! The device asks for pages by an event, which a work item of the region handles: it brings the
//! pages in and passes them to the device. When the process, the kernel or the exporter of a
//! dma-buf changes the memory, the pages are taken back. Both happen by commands under the lock of
//! the memory. This lock is also taken to reclaim memory, so these commands have preallocated
//! memory ([`PageCommands`]). The region is destroyed under that lock as well, so no command for it
//! can come later, when the device may have reused its key for another region.

use core::{
    ops::Range,
    ptr, //
};

use kernel::{
    new_mutex,
    new_spinlock,
    page::PAGE_SIZE,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        ArcBorrow,
        Mutex,
        SpinLock, //
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
        Advice,
        DmaBufRange, //
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
    feature,
    mr::{
        checked_length,
        first_address,
        may_have_windows, //
    },
    object::{
        create,
        Object, //
    }, //
};

/// Number of attempts to look up pages while the process changes its memory concurrently.
const PATIENCE: u32 = 10;

/// How many batches of pages of a dma-buf are passed to the device under its lock at once.
const BATCHES: usize = 64;

/// Binary logarithm of the size of a piece of an address space. Each piece is a region of its own.
const PIECE_SHIFT: u8 = 30;

/// Size of a piece in bytes.
const PIECE: usize = 1 << PIECE_SHIFT;

/// Number of pieces of an address space. They cover more addresses than any process gets by
/// default.
const PIECES: u32 = 1 << (48 - PIECE_SHIFT);

/// Maximum number of prefetches queued for a region's work item; more are executed synchronously.
const MAX_PREFETCHES: usize = 256;

/// Commands to fetch page faults from the device, pass pages to it and take pages back, without
/// allocating memory.
#[pin_data]
pub(crate) struct PageCommands {
    control: Arc<Control>,
    /// Held while the device has one of the commands. No memory is allocated under it.
    #[pin]
    slots: Mutex<Slots>,
}

/// The commands, and the table that one of them refers to.
struct Slots {
    take: Prepared<TakePageFault>,
    map: Prepared<MapPages>,
    refuse: Prepared<RefusePages>,
    attach: Prepared<AttachRegion>,
    unmap: Prepared<UnmapPages>,
    table: SharedMemory,
}

impl PageCommands {
    pub(crate) fn new(dma: &Dma, control: &Arc<Control>) -> Result<Arc<Self>> {
        let slots = Slots {
            take: Prepared::new()?,
            map: Prepared::new()?,
            refuse: Prepared::new()?,
            attach: Prepared::new()?,
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

    /// Fetches the next page fault of a region.
    fn take(&self, (pd, key): (u32, u32)) -> Result<PageFault> {
        let request = TakePageFault {
            pd: pd.into(),
            key: key.into(),
        };
        self.slots.lock().take.execute(&self.control, &request)
    }

    /// Passes at most [`TABLE_PAGES`] pages to a region, starting from page `first`.
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

    /// Tells the device that a page of a region does not exist.
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

    /// Makes the region with key `piece` a piece of another one.
    fn attach(&self, (pd, key): (u32, u32), number: u32, piece: u32) -> Result {
        let request = AttachRegion {
            pd: pd.into(),
            key: key.into(),
            page: number.into(),
            region: piece.into(),
        };
        let mut slots = self.slots.lock();
        let Empty {} = slots.attach.execute(&self.control, &request)?;
        Ok(())
    }

    /// Makes the device forget pages of a region. On return it does not access them.
    fn unmap(&self, (pd, key): (u32, u32), pages: &Range<usize>) {
        // CAST: The device accepted a region of that many pages.
        let request = UnmapPages {
            pd: pd.into(),
            key: key.into(),
            first_page: (pages.start as u32).into(),
            page_count: (pages.len() as u32).into(),
        };
        let result = self.slots.lock().unmap.execute(&self.control, &request);
        match result {
            Ok(Empty {}) => {}
            // Asking stops a device that has failed.
            Err(_) if self.control.is_stopped() => {}
            Err(err) => {
                let health = self.control.health();
                dev_err!(health.dev(), "failed to take back pages: {:?}\n", err);
                self.control.fail("it does not release pages");
            }
        }
    }
}

/// Pages that a region should get.
struct PageRequest {
    pages: Range<usize>,
    write: bool,
    fault: bool,
}

/// The region of the device that consists of a memory.
#[derive(Copy, Clone)]
struct Region {
    pd: u32,
    key: u32,
    /// Address by which work requests refer to the first byte.
    iova: u64,
    /// Whether anyone may write to the memory.
    writable: bool,
}

/// The driver's data for the memory of a region.
#[pin_data]
struct RegionPager {
    commands: Arc<PageCommands>,
    /// The region; [`None`] before the device has it and after its destruction. Another region, or
    /// none, takes its place under the lock of the memory.
    #[pin]
    region: SpinLock<Option<Region>>,
    #[pin]
    prefetches: Mutex<KVec<PageRequest>>,
    /// Present for a region that spans an address space. The region's own watched memory is then
    /// unused.
    space: Option<Pin<KBox<Space>>>,
}

/// A region that spans an address space. The device asks for its pieces as if they were pages.
#[pin_data]
struct Space {
    addresses: AddressSpace,
    faults: Arc<Faults>,
    /// Regions of the pieces that the device asked for, by number; [`None`] once the region is
    /// destroyed.
    #[pin]
    pieces: Mutex<Option<RBTree<u32, Paged>>>,
}

impl Space {
    /// Returns the memory of a piece of the region of `whole`, and creates the piece if necessary.
    fn piece(&self, whole: &Memory<BoxedPager>, number: u32) -> Result<Watched> {
        let pager = &whole.pager().0;
        let (pd, _) = pager.name()?;
        let mut pieces = self.pieces.lock();
        let pieces = Option::as_mut(&mut *pieces).ok_or(ENOENT)?;
        if let Some(piece) = pieces.get(&number) {
            return Ok(piece.memory.clone());
        }
        let node = RBTreeNodeReservation::new(GFP_KERNEL)?;
        let address = u64::from(number) << PIECE_SHIFT;
        let own = BoxedPager::new(&pager.commands, None)?;
        let memory = Arc::new(self.addresses.watch(address, PIECE, own)?, GFP_KERNEL)?;
        // Accesses to a piece use the rights of the whole region.
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
        // The whole region may have been destroyed in the meantime, and its key used again.
        let attach = || pager.commands.attach(pager.name()?, number, piece.key());
        whole.exclusively(attach)??;
        let memory = piece.memory.clone();
        pieces.insert(node.into_node(number, piece));
        Ok(memory)
    }
}

/// A pager that can be moved.
pub(crate) struct BoxedPager(Pin<KBox<RegionPager>>);

impl RegionPager {
    /// Returns the region. The device has it while the lock of the memory is held. `ENOENT` if
    /// there is none.
    fn region(&self) -> Result<Region> {
        (*self.region.lock()).ok_or(ENOENT)
    }

    /// Returns the protection domain and the key of the region, like [`region`](Self::region).
    fn name(&self) -> Result<(u32, u32)> {
        self.region().map(|region| (region.pd, region.key))
    }

    /// Passes pages to the device in batches; a batch is passed as a whole or not at all.
    fn map(&self, memory: &Memory<BoxedPager>, request: &PageRequest) -> Result {
        // To find a page of a dma-buf takes a walk through its list, so one walk serves for more.
        let step = if memory.is_dma_buf() {
            BATCHES * TABLE_PAGES
        } else {
            TABLE_PAGES
        };
        let mut first = request.pages.start;
        while first < request.pages.end {
            let end = request.pages.end.min(first + step);
            let mut patience = PATIENCE;
            loop {
                let mapped = memory.map(first..end, request.write, request.fault, |pages| {
                    let mut batches = (first..end).step_by(TABLE_PAGES);
                    batches.try_for_each(|at| self.commands.map(self.name()?, at, pages))
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

    /// Answers a page fault with the pages. If a batch fails, answers page by page, and tells the
    /// device which pages do not exist.
    fn answer(&self, memory: &Memory<BoxedPager>, request: &PageRequest) -> Result {
        let mut first = request.pages.start;
        while first < request.pages.end {
            let end = request.pages.end.min(first + TABLE_PAGES);
            let batch = |pages| PageRequest { pages, ..*request };
            if self.map(memory, &batch(first..end)).is_err() {
                for page in first..end {
                    if self.map(memory, &batch(page..page + 1)).is_err() {
                        memory.exclusively(|| self.commands.refuse(self.name()?, page))??;
                    }
                }
            }
            first = end;
        }
        Ok(())
    }

    /// Answers a fault on an address space with pieces.
    fn answer_pieces(
        &self,
        space: &Space,
        memory: &Memory<BoxedPager>,
        request: &PageRequest,
    ) -> Result {
        for number in request.pages.clone() {
            // CAST: The number of pieces fits.
            if space.piece(memory, number as u32).is_err() {
                memory.exclusively(|| self.commands.refuse(self.name()?, number))??;
            }
        }
        Ok(())
    }

    /// Returns the number of pages of the region as the device counts them.
    fn pages(&self, memory: &Memory<BoxedPager>) -> usize {
        match &self.space {
            Some(_) => PIECES as usize,
            None => memory.pages(),
        }
    }

    /// Answers all page faults of the region.
    fn answer_all(&self, memory: &Memory<BoxedPager>) -> Result {
        loop {
            let fault = memory.exclusively(|| self.commands.take(self.name()?))??;
            let first = fault.first_page.get() as usize;
            let count = fault.page_count.get() as usize;
            if count == 0 {
                return Ok(());
            }
            let end = first.checked_add(count).ok_or(EINVAL)?;
            if end > self.pages(memory) {
                return Err(EINVAL);
            }
            let request = PageRequest {
                pages: first..end,
                write: fault.flags.get() & fault_flags::WRITE != 0,
                fault: true,
            };
            match &self.space {
                Some(space) => self.answer_pieces(space, memory, &request)?,
                None => self.answer(memory, &request)?,
            }
        }
    }
}

impl BoxedPager {
    /// Creates a pager for a region that the device does not have yet.
    fn new(commands: &Arc<PageCommands>, space: Option<Pin<KBox<Space>>>) -> Result<Self> {
        let pager = KBox::pin_init(
            pin_init!(RegionPager {
                commands: commands.clone(),
                region <- new_spinlock!(None),
                prefetches <- new_mutex!(KVec::new()),
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
        if let Ok(name) = self.0.name() {
            self.0.commands.unmap(name, &pages);
        }
    }

    fn serve(&self, memory: &Memory<Self>) {
        // Faults of the device come first, because work requests wait for them.
        let answered = self.0.answer_all(memory);
        let prefetches = core::mem::take(&mut *self.0.prefetches.lock());
        for request in &prefetches {
            // Failed prefetches are not reported.
            let _ = self.0.map(memory, request);
        }
        if let Err(err) = answered {
            let health = self.0.commands.control.health();
            dev_dbg!(health.dev(), "page faults cannot be answered: {:?}\n", err);
        }
    }
}

/// Memory that is not pinned.
type Watched = Arc<OnDemand<BoxedPager>>;

/// Regions for which the device may ask for pages, by key.
#[pin_data]
pub(crate) struct Faults {
    #[pin]
    regions: XArray<Watched>,
    /// Number of faults on keys that are not in the table.
    unknown: Atomic<u32>,
}

impl Faults {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let faults = pin_init!(Self {
            regions <- XArray::new(AllocKind::Alloc),
            unknown: Atomic::new(0),
        });
        Arc::pin_init(faults, GFP_KERNEL)
    }

    /// Handles a page fault event for the region with that key. Returns whether there is such a
    /// region.
    pub(crate) fn serve(&self, key: u32) -> bool {
        let regions = self.regions.lock();
        let region = regions.get(key as usize);
        match &region {
            Some(region) => region.request(),
            // Counted with the lock held, so that a thread that adds the region later sees it.
            None => {
                self.unknown.fetch_add(1, Relaxed);
            }
        }
        region.is_some()
    }

    /// Adds a region.
    fn add(&self, key: u32, memory: &Watched) -> Result {
        // A region with the same key may still be on its way out.
        let before = {
            let mut regions = self.regions.lock();
            regions.store(key as usize, memory.clone(), GFP_KERNEL)
        };
        before.map(drop).map_err(|error| error.error)
    }

    /// Removes a region, unless another one already has its key.
    fn remove(&self, key: u32, memory: &Watched) {
        let mut regions = self.regions.lock();
        let is_ours = |other: ArcBorrow<'_, _>| ptr::eq(&*other, &**memory);
        if regions.get(key as usize).is_some_and(is_ours) {
            let memory = regions.remove(key as usize);
            // Dropped after the table is unlocked.
            drop(regions);
            drop(memory);
        }
    }

    /// Returns the region of `pd` with that key, and its memory.
    fn get(&self, pd: u32, key: u32) -> Option<(Region, Watched)> {
        let regions = self.regions.lock();
        let memory = regions.get(key as usize).map(Watched::from)?;
        drop(regions);
        let region = memory.pager().0.region().ok()?;
        ((region.pd, region.key) == (pd, key)).then_some((region, memory))
    }

    /// Passes pages to the device before it asks for them. `EINVAL` if a piece is not within an
    /// on-demand region of `pd`, `EPERM` if a piece is to be written but may not be. In these cases
    /// nothing is done.
    pub(crate) fn advise(&self, pd: u32, advice: Advice, wait: bool, pieces: &[Sge]) -> Result {
        let mut found = KVec::with_capacity(pieces.len(), GFP_KERNEL)?;
        for piece in pieces {
            let (region, memory) = self.get(pd, piece.lkey()).ok_or(EINVAL)?;
            let pager = &memory.pager().0;
            let write = advice == Advice::PrefetchWrite;
            if write && !region.writable {
                return Err(EPERM);
            }
            let start = piece.address().checked_sub(region.iova).ok_or(EINVAL)?;
            let length = u64::from(piece.length());
            let end = start.checked_add(length).ok_or(EINVAL)?;
            let fault = advice != Advice::PrefetchNoFault;
            let request = |pages| PageRequest {
                pages,
                write,
                fault,
            };
            let Some(space) = &pager.space else {
                if end > memory.len() as u64 {
                    return Err(EINVAL);
                }
                if length > 0 {
                    // CAST: The range is within the memory.
                    let pages = pages_of(memory.offset(), start as usize..end as usize);
                    found.push((memory, request(pages)), GFP_KERNEL)?;
                }
                continue;
            };
            let pieces = pieces_of(start..end).ok_or(EINVAL)?;
            for (number, bytes) in pieces {
                let piece = space.piece(&memory, number)?;
                found.push((piece, request(pages_of(0, bytes))), GFP_KERNEL)?;
            }
        }
        for (memory, request) in found {
            let pager = &memory.pager().0;
            if wait {
                pager.map(&memory, &request)?;
                continue;
            }
            let mut prefetches = pager.prefetches.lock();
            if prefetches.len() < MAX_PREFETCHES {
                prefetches.push(request, GFP_KERNEL)?;
                drop(prefetches);
                memory.request();
            } else {
                drop(prefetches);
                let _ = pager.map(&memory, &request);
            }
        }
        Ok(())
    }
}

/// Returns the pages that contain these bytes of memory that starts `offset` bytes into its first
/// page.
fn pages_of(offset: usize, bytes: Range<usize>) -> Range<usize> {
    (offset + bytes.start) / PAGE_SIZE..(offset + bytes.end).div_ceil(PAGE_SIZE)
}

/// Returns the pieces of an address space that contain these addresses, with the range of bytes in
/// each. [`None`] if the addresses do not exist.
fn pieces_of(addresses: Range<u64>) -> Option<impl Iterator<Item = (u32, Range<usize>)>> {
    const SIZE: u64 = PIECE as u64;

    if addresses.end > SIZE * u64::from(PIECES) {
        return None;
    }
    // CAST: The number of pieces fits, and a piece is not larger than memory can be.
    let pieces = (addresses.start / SIZE..addresses.end.div_ceil(SIZE)).map(move |number| {
        let first = number * SIZE;
        let start = addresses.start.max(first) - first;
        let end = addresses.end.min(first + SIZE) - first;
        (number as u32, start as usize..end as usize)
    });
    Some(pieces.filter(|(_, bytes)| !bytes.is_empty()))
}

/// Checks the length of an on-demand region; `EINVAL` if it is 0 or exceeds the device's limit.
fn nonzero_length(call: &Call<'_>, length: u64) -> Result<usize> {
    match checked_length(call, length)? {
        0 => Err(EINVAL),
        length => Ok(length),
    }
}

/// An on-demand region. Dropping it destroys the region.
pub(crate) struct Paged {
    object: Object<DeregisterMr>,
    memory: Watched,
    faults: Arc<Faults>,
    /// The memory in the process or in the dma-buf.
    range: mr::Range,
    access: AccessFlags,
}

impl Paged {
    /// Registers memory of a process with these rights in the device's encoding.
    pub(crate) fn register(
        call: &Call<'_>,
        pd: u32,
        range: &mr::Range,
        access: AccessFlags,
        rights: u32,
    ) -> Result<Self> {
        // This stands for the whole address space, whatever will be mapped there.
        let is_space = range.start == 0 && range.length == u64::MAX;
        let commands = call.data().paging.as_ref().ok_or(EOPNOTSUPP)?;
        let faults = &call.data().faults;
        let iova = first_address(range.iova, access);
        let (space, start, length) = if is_space {
            if !call.data().features.contains(feature::NESTED_PAGING) {
                return Err(EOPNOTSUPP);
            }
            if iova != 0 {
                return Err(EINVAL);
            }
            let addresses = AddressSpace::of_caller(call, access)?;
            let space = pin_init!(Space {
                addresses,
                faults: faults.clone(),
                pieces <- new_mutex!(Some(RBTree::new())),
            });
            // The watched page is unused, but it has the work item that creates the pieces.
            (Some(KBox::pin_init(space, GFP_KERNEL)?), 0, PAGE_SIZE)
        } else {
            (None, range.start, nonzero_length(call, range.length)?)
        };
        let pager = BoxedPager::new(commands, space)?;
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

    /// Registers a part of a dma-buf with these rights in the device's encoding.
    ///
    /// The device gets all pages at once. If they cannot be brought in, or it cannot reach them,
    /// registration fails.
    pub(crate) fn register_dma_buf(
        call: &Call<'_>,
        pd: u32,
        range: &DmaBufRange,
        access: AccessFlags,
        rights: u32,
    ) -> Result<Self> {
        let commands = call.data().paging.as_ref().ok_or(EOPNOTSUPP)?;
        let length = nonzero_length(call, range.length)?;
        let offset = usize::try_from(range.offset)?;
        let pager = BoxedPager::new(commands, None)?;
        let memory = OnDemand::of_dma_buf(call, range.fd, offset, length, access, pager)?;
        let memory = Arc::new(memory, GFP_KERNEL)?;
        let request = RegisterMr {
            pd: pd.into(),
            access: rights.into(),
            iova: first_address(range.iova, access).into(),
            ..Default::default()
        };
        let range = mr::Range {
            start: range.offset,
            length: range.length,
            iova: range.iova,
        };
        let paged = Self::create(&call.data().faults, memory, request, range, access)?;
        let all = PageRequest {
            pages: 0..paged.memory.pages(),
            write: false,
            fault: true,
        };
        paged.memory.pager().0.map(&paged.memory, &all)?;
        Ok(paged)
    }

    /// Gives the memory of a dma-buf to a region of `pd` with these rights, which replaces the
    /// present one. `EBUSY` if memory windows are bound to it. On error it remains as it was.
    pub(crate) fn replace(&mut self, pd: u32, access: AccessFlags, rights: u32) -> Result {
        let request = RegisterMr {
            pd: pd.into(),
            access: rights.into(),
            iova: first_address(self.range.iova, access).into(),
            ..Default::default()
        };
        let (object, region) = Self::describe(&self.memory, request, access)?;
        self.faults.add(region.key, &self.memory)?;
        let replaced = self.memory.exclusively(|| {
            self.object.try_destroy(may_have_windows(self.access))?;
            *self.memory.pager().0.region.lock() = Some(region);
            Ok::<_, Error>(())
        });
        if let Err(err) = replaced.and_then(|result| result) {
            self.faults.remove(region.key, &self.memory);
            return Err(err);
        }
        self.faults.remove(self.object.number(), &self.memory);
        self.object = object;
        self.access = access;
        // A process that guessed the key may have caused a page fault already.
        self.memory.request();
        Ok(())
    }

    /// Creates a region of memory on the device, as described by `request`, which does not contain
    /// pages yet.
    fn describe(
        memory: &Watched,
        request: RegisterMr,
        access: AccessFlags,
    ) -> Result<(Object<DeregisterMr>, Region)> {
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
        let (object, _) = create(
            &pager.commands.control,
            &RegisterMr {
                flags: flags.into(),
                pages,
                ..request
            },
        )?;
        let key = object.number();
        // The driver uses key 0 for "no region".
        if key == 0 {
            return Err(pager.commands.control.nonsense());
        }
        let region = Region {
            pd: request.pd.get(),
            key,
            iova: request.iova.get(),
            writable: access.contains(Access::LocalWrite),
        };
        Ok((object, region))
    }

    /// Registers memory as described by `request`, which does not contain pages yet.
    fn create(
        faults: &Arc<Faults>,
        memory: Watched,
        request: RegisterMr,
        range: mr::Range,
        access: AccessFlags,
    ) -> Result<Self> {
        let unknown = faults.unknown.load(Relaxed);
        let (object, region) = Self::describe(&memory, request, access)?;
        let paged = Self {
            object,
            memory,
            faults: faults.clone(),
            range,
            access,
        };
        *paged.memory.pager().0.region.lock() = Some(region);
        paged.faults.add(region.key, &paged.memory)?;
        // A process that guessed the key may have caused a page fault before the region was in the
        // table, and the device does not raise the event again.
        if faults.unknown.load(Relaxed) != unknown {
            paged.memory.request();
        }
        Ok(paged)
    }

    /// Returns the key of the region.
    pub(crate) fn key(&self) -> u32 {
        self.object.number()
    }

    /// Returns what was registered: the protection domain, the memory in the process if it is not
    /// a dma-buf, and the rights.
    pub(crate) fn registered(&self) -> (u32, Option<mr::Range>, AccessFlags) {
        let range = (!self.memory.is_dma_buf()).then_some(self.range);
        (self.object.pd(), range, self.access)
    }

    /// Destroys the region, unless memory windows are bound to it (`EBUSY`).
    pub(crate) fn try_destroy(&self) -> Result {
        let pager = &self.memory.pager().0;
        let region = self.memory.exclusively(|| {
            self.object.try_destroy(may_have_windows(self.access))?;
            Ok::<_, Error>(pager.region.lock().take())
        })??;
        let Some(region) = region else {
            return Ok(());
        };
        if let Some(space) = &pager.space {
            // The device asks for no more pieces, and concurrent creation of a piece fails.
            let pieces = space.pieces.lock().take();
            drop(pieces);
        }
        self.faults.remove(region.key, &self.memory);
        Ok(())
    }

    /// Returns the number of pages as the device counts them.
    pub(crate) fn pages(&self) -> u32 {
        // CAST: The device accepted a region of that many pages.
        self.memory.pager().0.pages(&self.memory) as u32
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        // If the device refuses, this logs an error and stops the device.
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
        assert_eq!(faults.unknown.load(Relaxed), 1);
        assert!(faults.get(0, 7).is_none());
        Ok(())
    }
}
