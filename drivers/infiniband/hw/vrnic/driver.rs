// SPDX-License-Identifier: GPL-2.0

//! Binding to a device, and unbinding from it.
//!
//! ```text
//!   probe    configuration ─▶ queues ─▶ ready ─▶ QUERY_DEVICE ─▶ kernel's context ─▶ RDMA device
//!            ─▶ buffers for asynchronous events
//!   remove   RDMA device ─▶ kernel's context ─▶ reset ─▶ queues
//! ```
//!
//! The order of `remove` is the order of fields. [`Data`] drops the registration of the RDMA device
//! first, which destroys all objects while the device still takes commands. [`Resources`], which
//! the registration owns, goes next, and its queues last.

use kernel::{
    device::{
        self,
        Bound,
        Core, //
    },
    prelude::*,
    sync::Arc, //
};
use rdma::{
    device::{
        NodeType,
        Properties, //
    },
    event::Objects,
    Registration,
    UnregisteredDevice, //
};
use virtio::{
    AnyVirtqueue,
    Device,
    DeviceId,
    Dma,
    Feature,
    Features,
    IdTable,
    Region,
    RestartPolicy,
    Restarter,
    Virtqueue,
    Virtqueues, //
};
use vrnic_wire::{
    command::{
        DeviceLimits,
        QueryDevice, //
    },
    config::{
        Config,
        DOORBELL_PAGE_SIZE,
        PCI_CAP_DOORBELL_CFG,
        VIRTIO_ID_RDMA, //
    },
    memory::{
        LOCAL_DMA_KEY,
        MAX_PAGE_SHIFT,
        MIN_PAGE_SHIFT, //
    },
    ring::{
        MAX_ENTRIES,
        MAX_STRIDE, //
    },
    work::{
        Sge,
        RECEIVE_DATA_OFFSET,
        SEND_DATA_OFFSET, //
    }, //
};

use crate::{
    control::{
        self,
        Control, //
    },
    device::Vrnic,
    dm::Pool,
    event::{
        self,
        AsyncEvents,
        CompletionEventHandler, //
    },
    feature,
    health::{
        supervise,
        Health,
        Supervised, //
    },
    kernel_context::KernelContext,
    multicast::Detacher,
    odp::{
        Faults,
        PageCommands, //
    },
    port::Link, //
};

/// The driver.
pub(crate) struct Driver;

virtio::virtio_device_table!(VIRTIO_TABLE, [DeviceId::new(VIRTIO_ID_RDMA as u32)]);

impl virtio::Driver for Driver {
    type Data<'bound> = Data<'bound>;
    const ID_TABLE: IdTable = IdTable::new(&VIRTIO_TABLE);
    const FEATURES: &'static [Feature] = feature::ACCEPTED;
    // Users notice a failure within the first delay, and most devices that fail again do so at
    // once.
    const RESTARTS: RestartPolicy = RestartPolicy {
        attempts: 5,
        first_delay_ms: 1000,
        settled_ms: 60_000,
    };

    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        Data::new(dev, restarter)
    }

    fn config_changed(dev: &Device<Bound>, this: Pin<&Self::Data<'_>>) {
        let status = dev.status();
        if status.is_gone() {
            this.health.fail("it is gone");
        } else if status.needs_reset() {
            this.health.fail("it needs a reset");
        } else if !status.driver_ok() {
            this.health.fail("it has been reset");
        }
    }

    fn shutdown<'bound>(_dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        this.health.shutdown();
    }
}

/// The driver's data for a device.
pub(crate) struct Data<'bound> {
    // Fields are dropped in declaration order.
    _registration: Registration<'bound, Vrnic>,
    health: Arc<Health>,
}

impl<'bound> Data<'bound> {
    fn new(dev: &'bound Device<Core<'_>>, restarter: Restarter) -> Result<Self> {
        let (resources, objects, events) = Resources::new(dev, restarter)?;
        let health = resources.health.clone();
        let registration = register(dev.parent(), objects, resources)?;
        // Only now is there somebody to notify of events of the port. The device keeps them until
        // it has buffers.
        match event::fill(&*events) {
            // The supervision restarts a failed device.
            Err(_) if health.has_failed() => {}
            filled => filled?,
        }
        Ok(Self {
            _registration: registration,
            health,
        })
    }
}

/// Registers the RDMA device.
#[expect(
    unsafe_code,
    reason = "a registration must not be leaked, which no type can say"
)]
fn register<'bound>(
    parent: &'bound device::Device<Bound>,
    objects: Objects,
    resources: Resources<'bound>,
) -> Result<Registration<'bound, Vrnic>> {
    let config = resources.config;
    let properties = Properties {
        ports: config.ports.get(),
        node_type: NodeType::ChannelAdapter,
        node_guid: config.node_guid.get(),
        node_description: c"vrnic",
        user_posts_by_verb: resources.doorbells.is_none(),
        counters_of_queue_pairs: resources.limits.max_counter_sets.get() != 0,
        answers_management: resources.link() == Link::InfiniBand,
        local_dma_key: resources
            .features
            .contains(feature::MEMORY_EXTENSIONS)
            .then_some(LOCAL_DMA_KEY),
    };
    let device = UnregisteredDevice::new(&properties, objects)?;
    let data = Ok::<_, Error>(resources);

    // SAFETY: The result becomes a field of `Data`, which the virtio adapter drops before the
    // device is unbound, or the error path of `probe` drops it. It is never forgotten.
    unsafe { Registration::new(device, c"vrnic%d", parent, data) }
}

/// The parts of the device that verbs use while the RDMA device is registered.
pub(crate) struct Resources<'bound> {
    // Fields are dropped in declaration order.
    /// Context for objects of the kernel.
    pub(crate) context: KernelContext<'bound>,
    /// Executes commands on the device.
    pub(crate) control: Arc<Control>,
    /// Tracks whether the device still works.
    pub(crate) health: Arc<Health>,
    /// Optional features of the device.
    pub(crate) features: Features,
    /// Limits of the device.
    pub(crate) limits: DeviceLimits,
    /// Configuration of the device.
    pub(crate) config: Config,
    /// Doorbell region; [`None`] if doorbells are commands.
    pub(crate) doorbells: Option<Region<'bound>>,
    /// Detaches queue pairs from multicast groups.
    pub(crate) detacher: Pin<KBox<Detacher>>,
    /// Commands for on-demand paging, if the device has the feature.
    pub(crate) paging: Option<Arc<PageCommands>>,
    /// The device memory.
    pub(crate) device_memory: Arc<Pool>,
    /// Regions for which the device may ask for pages.
    pub(crate) faults: Arc<Faults>,
    /// Supervises the device for as long as there are users, who wait for posted requests.
    _supervised: Supervised,
    queues: Virtqueues<'bound>,
}

impl<'bound> Resources<'bound> {
    /// Returns the link layer of the port.
    pub(crate) fn link(&self) -> Link {
        Link::of(self.features)
    }

    /// Returns the device that does the DMA.
    pub(crate) fn dma(&self) -> &Dma {
        self.queues.dma()
    }

    /// Brings the device up as far as the verbs need it.
    ///
    /// Also returns the queue of asynchronous events, to which no buffers were added yet.
    fn new(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> Result<(Self, Objects, Arc<Virtqueue<AsyncEvents>>)> {
        let features = check_features(dev)?;
        let config = read_config(dev)?;
        let doorbells = find_doorbells(dev, &config)?;

        let vectors = u32::from(config.completion_vectors.get());
        let objects = Objects::new(vectors)?;
        let dispatcher = objects.dispatcher();
        let health = Health::new(dev.as_ref(), dispatcher.clone(), restarter)?;

        let control_queue = control::new_queue()?;
        let faults = Faults::new()?;
        let async_queue =
            AsyncEvents::new_queue(dispatcher.clone(), health.clone(), faults.clone())?;
        let mut completion_queues = KVec::new();
        for vector in 0..vectors {
            let queue =
                CompletionEventHandler::new_queue(dev.as_ref(), dispatcher.clone(), vector)?;
            completion_queues.push(queue, GFP_KERNEL)?;
        }

        // Numbered as in the specification: control, asynchronous events, completion events.
        let mut all: KVec<Arc<dyn AnyVirtqueue>> = KVec::new();
        all.push(control_queue.clone(), GFP_KERNEL)?;
        all.push(async_queue.clone(), GFP_KERNEL)?;
        for queue in &completion_queues {
            all.push(queue.clone(), GFP_KERNEL)?;
        }
        let first = all.len() - completion_queues.len();
        let queues = Virtqueues::new(dev, all)?;
        // Each vector gets a CPU of its own, so users can choose where they get completions.
        for vector in 0..vectors {
            // CAST: `usize` has at least 32 bits.
            queues.set_affinity(first + vector as usize, vector);
        }

        queues.ready()?;
        for queue in &completion_queues {
            event::fill(&**queue)?;
        }

        let stopper = queues.stopper();
        let control = Control::new(control_queue, async_queue.clone(), stopper, health.clone())?;
        let limits = control.execute(&QueryDevice {})?;
        check_limits(dev, &limits)?;
        let dma = queues.dma();
        let paging = if features.contains(feature::ON_DEMAND_PAGING) {
            Some(PageCommands::new(dma, &control)?)
        } else {
            None
        };
        let resources = Self {
            _supervised: supervise(&queues, control.clone())?,
            context: KernelContext::new(dma, &control, doorbells.as_ref())?,
            control,
            health,
            features,
            limits,
            config,
            doorbells,
            detacher: Detacher::new()?,
            device_memory: Pool::new()?,
            paging,
            faults,
            queues,
        };
        Ok((resources, objects, async_queue))
    }
}

/// Returns the features of a device. Rejects one that the driver cannot work with.
fn check_features(dev: &Device<Bound>) -> Result<Features> {
    let features = dev.features();
    let Some(reason) = wrong_features(features) else {
        return Ok(features);
    };
    dev_err!(dev, "device {}\n", reason);
    Err(ENODEV)
}

/// Returns what is wrong with the features of a device, if there is something.
fn wrong_features(features: Features) -> Option<&'static str> {
    // Without these it predates the specification, or bypasses the platform's DMA.
    if !features.contains(Feature::VERSION_1) || !features.contains(Feature::ACCESS_PLATFORM) {
        return Some("lacks VIRTIO_F_VERSION_1 or VIRTIO_F_ACCESS_PLATFORM");
    }
    // Rings and page tables are ordered for a device that is a thread on another CPU. The virtio
    // core accepts the feature for every driver.
    if features.contains(Feature::ORDER_PLATFORM) {
        return Some("needs VIRTIO_F_ORDER_PLATFORM");
    }
    None
}

/// Reads the configuration, and rejects one that is not usable.
fn read_config(dev: &Device<Bound>) -> Result<Config> {
    let config = dev.read_config::<Config>()?;
    if config.completion_vectors.get() == 0 || config.ports.get() != 1 {
        dev_err!(
            dev,
            "device has {} completion vectors and {} ports\n",
            config.completion_vectors.get(),
            config.ports.get()
        );
        return Err(ENODEV);
    }
    Ok(config)
}

/// Rejects a device with invalid limits. Other kernel code relies on them: it divides by some of
/// them, and sizes tables by others.
fn check_limits(dev: &Device<Bound>, limits: &DeviceLimits) -> Result {
    let Some(name) = wrong_limit(limits) else {
        return Ok(());
    };
    dev_err!(dev, "device has an invalid {}\n", name);
    Err(ENODEV)
}

/// Returns the name of the first invalid limit, if there is one.
fn wrong_limit(limits: &DeviceLimits) -> Option<&'static str> {
    const SMALLEST: u64 = 1 << MIN_PAGE_SHIFT;
    const LARGEST: u64 = 1 << MAX_PAGE_SHIFT;

    // CAST: Small constants.
    let room = |header: usize| MAX_STRIDE - header as u32;
    let elements = |header| room(header) / size_of::<Sge>() as u32;
    let ranges = [
        ("max_qp_entries", limits.max_qp_entries, 1..=MAX_ENTRIES),
        ("max_cq_entries", limits.max_cq_entries, 1..=MAX_ENTRIES),
        (
            "max_send_sge",
            limits.max_send_sge,
            1..=elements(SEND_DATA_OFFSET),
        ),
        (
            "max_recv_sge",
            limits.max_recv_sge,
            1..=elements(RECEIVE_DATA_OFFSET),
        ),
        ("max_inline", limits.max_inline, 0..=room(SEND_DATA_OFFSET)),
        // All users keep the following values in a byte.
        ("max_rd_atomic", limits.max_rd_atomic, 0..=255),
        ("max_dest_rd_atomic", limits.max_dest_rd_atomic, 0..=255),
        ("gid_table_length", limits.gid_table_length, 1..=256),
    ];
    let wrong = ranges
        .iter()
        .find(|(_, limit, range)| !range.contains(&limit.get()));
    // Page lists have no other page sizes (smaller pages would make them longer), and the smallest
    // size must be supported.
    let sizes = limits.page_sizes.get();
    let lists = sizes & SMALLEST != 0 && sizes & !(2 * LARGEST - SMALLEST) == 0;
    match wrong {
        Some((name, ..)) => Some(name),
        None => (!lists).then_some("page_sizes"),
    }
}

/// Finds the doorbell region, if the device has one.
fn find_doorbells<'bound>(
    dev: &'bound Device<Bound>,
    config: &Config,
) -> Result<Option<Region<'bound>>> {
    if !dev.features().contains(feature::DOORBELL) {
        return Ok(None);
    }
    let region = dev.region(PCI_CAP_DOORBELL_CFG)?.filter(|region| {
        let memory = region.memory();
        holds_doorbells(memory.start(), memory.len(), config.doorbell_pages.get())
    });
    if region.is_none() {
        dev_err!(dev, "device offers doorbells that it does not have\n");
        return Err(ENODEV);
    }
    Ok(region)
}

/// Returns whether a region of `length` bytes at address `start` has that many doorbell pages.
/// Processes map them, so they must start where a page can.
fn holds_doorbells(start: u64, length: u64, pages: u32) -> bool {
    let page = u64::from(DOORBELL_PAGE_SIZE);
    pages > 0 && start % page == 0 && length >= u64::from(pages) * page
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_driver)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_whole_pages() {
        assert!(holds_doorbells(0xf000_1000, 0x2000, 2));
        assert!(holds_doorbells(0xf000_0000, 0x2fff, 2));
        assert!(!holds_doorbells(0xf000_0000, 0x1fff, 2));
        assert!(!holds_doorbells(0xf000_0000, 0x1000, 0));
        assert!(!holds_doorbells(0xf000_0000, 0x1000, u32::MAX));
        // A page that a process maps would begin before the region.
        for start in [0xf000_0004, 0xf000_0800, 0xf000_0fff] {
            assert!(!holds_doorbells(start, 0x4000, 2));
        }
    }

    #[test]
    fn features_that_the_driver_cannot_work_with_are_refused() {
        let good = Feature::VERSION_1 | Feature::ACCESS_PLATFORM;
        assert_eq!(wrong_features(good), None);
        assert_eq!(wrong_features(good | feature::DOORBELL), None);
        for lacking in [Feature::VERSION_1, Feature::ACCESS_PLATFORM] {
            assert!(wrong_features(lacking.into()).is_some());
        }
        assert!(wrong_features(good | Feature::ORDER_PLATFORM).is_some());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let good = DeviceLimits {
            page_sizes: ((2 << MAX_PAGE_SHIFT) - (1 << MIN_PAGE_SHIFT)).into(),
            max_qp_entries: MAX_ENTRIES.into(),
            max_cq_entries: MAX_ENTRIES.into(),
            max_send_sge: 60.into(),
            max_recv_sge: 63.into(),
            max_inline: 960.into(),
            max_rd_atomic: 255.into(),
            max_dest_rd_atomic: 255.into(),
            gid_table_length: 256.into(),
            ..Default::default()
        };
        let with = |change: fn(&mut DeviceLimits)| {
            let mut limits = good;
            change(&mut limits);
            wrong_limit(&limits)
        };

        assert_eq!(with(|_| ()), None);
        assert_eq!(
            with(|limits| limits.max_send_sge = 61.into()),
            Some("max_send_sge")
        );
        assert_eq!(
            with(|limits| limits.max_send_sge = 0.into()),
            Some("max_send_sge")
        );
        assert_eq!(
            with(|limits| limits.max_recv_sge = (1 << 28).into()),
            Some("max_recv_sge")
        );
        assert_eq!(
            with(|limits| limits.max_qp_entries = (MAX_ENTRIES + 1).into()),
            Some("max_qp_entries")
        );
        assert_eq!(
            with(|limits| limits.max_cq_entries = 0.into()),
            Some("max_cq_entries")
        );
        assert_eq!(
            with(|limits| limits.max_inline = 961.into()),
            Some("max_inline")
        );
        assert_eq!(
            with(|limits| limits.max_rd_atomic = 256.into()),
            Some("max_rd_atomic")
        );
        assert_eq!(
            with(|limits| limits.gid_table_length = u32::MAX.into()),
            Some("gid_table_length")
        );
        for sizes in [0, 1 << 13, 1 << 12 | 1 << 3, 1 << 12 | 1 << 49] {
            let limits = DeviceLimits {
                page_sizes: u64::into(sizes),
                ..good
            };
            assert_eq!(wrong_limit(&limits), Some("page_sizes"));
        }
    }
}
