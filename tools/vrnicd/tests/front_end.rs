// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Plays a VMM against the front end, with a device behind it that records calls.

#![allow(
    clippy::cast_possible_truncation,
    clippy::large_stack_arrays,
    reason = "test values are small, test stacks large"
)]

mod common;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::*;
use proptest::prelude::*;
use rustix::io::Errno;
use vrnicd::guest_memory::GuestMemory;
use vrnicd::pci::Function;
use vrnicd::stop::Stop;
use vrnicd::vfio_user::journal::Journal;
use vrnicd::vfio_user::message::{
    DeviceInfo, DmaUnmap, Header, IrqInfo, IrqSet, RegionAccess, SmallWrite, command, dma_flags,
};
use vrnicd::vfio_user::pci_device::PciDevice;
use vrnicd::vfio_user::stream::MessageStream;
use vrnicd::vfio_user::{Disconnect, serve};
use vrnicd::virtio::{Activation, Backend, DeviceSpec, Notifier, QueueSetup};
use zerocopy::{FromBytes, IntoBytes};

#[derive(Debug, PartialEq, Clone)]
enum Call {
    Activate {
        features: u64,
        queues: Vec<QueueSetup>,
    },
    Reset(u64),
    Notify(u16),
    Doorbell(u32, u32),
}

/// Records calls; finishes resets only when told to.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<Call>>,
    notifier: Mutex<Option<Arc<dyn Notifier>>>,
    presence: AtomicU64,
}

impl Recorder {
    fn push(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn take(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.notifier.lock().unwrap().clone().unwrap()
    }
}

impl Backend for Recorder {
    fn activate(&self, activation: Activation) {
        *self.notifier.lock().unwrap() = Some(activation.notifier);
        self.push(Call::Activate {
            features: activation.features,
            queues: activation.queues,
        });
    }

    fn reset(&self, generation: u64, notifier: Arc<dyn Notifier>) {
        *self.notifier.lock().unwrap() = Some(notifier);
        self.push(Call::Reset(generation));
    }

    fn presence(&self) -> u64 {
        self.presence.load(Ordering::SeqCst)
    }

    fn queue_notify(&self, queue: u16) {
        self.push(Call::Notify(queue));
    }

    fn doorbell(&self, page: u32, value: u32) {
        self.push(Call::Doorbell(page, value));
    }
}

fn spec() -> DeviceSpec {
    DeviceSpec {
        virtio_id: 42,
        pci_class: [0, 0x80, 2],
        offered_features: F_VERSION_1 | F_ACCESS_PLATFORM | 1,
        required_features: F_VERSION_1 | F_ACCESS_PLATFORM,
        config: (0..32).collect(),
        queues: 6,
        max_queue_size: 256,
        doorbell_pages: 1000,
    }
}

fn start() -> (UnixStream, Arc<Recorder>, JoinHandle<Disconnect>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let recorder = Arc::new(Recorder::default());
    let backend: Arc<dyn Backend> = recorder.clone();
    let server = std::thread::spawn(move || {
        let memory = Arc::new(GuestMemory::new());
        let mut device =
            PciDevice::new(Function::new(spec(), backend, memory.clone()), memory, None);
        serve(
            MessageStream::new(
                theirs,
                Arc::new(Stop::new().unwrap()),
                Journal::new().unwrap().0,
            ),
            &mut device,
        )
    });
    (ours, recorder, server)
}

fn connect() -> (Client, Arc<Recorder>, JoinHandle<Disconnect>) {
    let (stream, recorder, server) = start();
    (Client::negotiated(stream), recorder, server)
}

/// Brings the device up with queue 0 enabled.
fn bring_up(client: &mut Client) -> (Ram, Queue) {
    let ram = Ram::new(1 << 20);
    let all = DmaUnmap {
        argsz: 24,
        flags: dma_flags::ALL,
        ..DmaUnmap::default()
    };
    client
        .request(command::DMA_UNMAP, all.as_bytes(), &[])
        .unwrap();
    client.map(&ram.fd, 0, 0, 1 << 20).unwrap();
    client.reset();
    assert!(client.accept_features(F_VERSION_1 | F_ACCESS_PLATFORM | 1));
    let queue = Queue::new(0x10000, 64);
    client.enable_queue(0, &queue);
    client.set_status(ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK);
    (ram, queue)
}

#[test]
fn a_vmm_finds_the_device() {
    let (mut client, _, server) = connect();
    let reply = client
        .request(
            command::DEVICE_GET_INFO,
            DeviceInfo::default().as_bytes(),
            &[],
        )
        .unwrap();
    let info = DeviceInfo::read_from_bytes(&reply).unwrap();
    assert_eq!((info.flags, info.regions, info.irqs), (3, 9, 5));
    let sizes: Vec<u64> = (0..9)
        .map(|index| {
            let region = client.region(index).unwrap();
            assert_eq!(region.flags & !3, 0, "nothing can be mapped");
            region.size
        })
        .collect();
    assert_eq!(sizes, [0x8000, 0, 0x10000, 0, 1024 * 4096, 0, 0, 256, 0]);
    assert_eq!(client.region(9), Err(Errno::INVAL));
    let irq = IrqInfo {
        argsz: 16,
        index: 2,
        ..IrqInfo::default()
    };
    let reply = client
        .request(command::DEVICE_GET_IRQ_INFO, irq.as_bytes(), &[])
        .unwrap();
    assert_eq!(IrqInfo::read_from_bytes(&reply).unwrap().count, 7);
    assert_eq!(client.read_number(CONFIG, 0, 4), 0x106a_1af4);
    assert_eq!(
        client.read(BAR0, 0x2000, 32).unwrap(),
        (0..32).collect::<Vec<u8>>()
    );
    assert_eq!(client.read_number(BAR0, 0x12, 2), 6, "number of queues");
    drop(client);
    assert!(matches!(server.join().unwrap(), Disconnect::Closed));
}

#[test]
fn features_are_negotiated() {
    let (mut client, _, _server) = connect();
    assert_eq!(
        client.offered_features(),
        F_VERSION_1 | F_ACCESS_PLATFORM | 1
    );
    for bad in [
        0,
        F_VERSION_1,
        F_ACCESS_PLATFORM,
        F_VERSION_1 | F_ACCESS_PLATFORM | 2,
    ] {
        client.reset();
        assert!(!client.accept_features(bad), "{bad:#x}");
        client.set_status(ACKNOWLEDGE_DRIVER | DRIVER_OK);
        assert_eq!(client.status() & DRIVER_OK, 0);
    }
    client.reset();
    assert!(client.accept_features(F_VERSION_1 | F_ACCESS_PLATFORM));
}

#[test]
fn a_card_that_is_pulled_out_reads_as_ones_and_comes_back_as_after_power_on() {
    let (mut client, recorder, _server) = connect();
    let command = client.read_number(CONFIG, 4, 2);
    client.write(CONFIG, 4, &[6, 0]).unwrap();
    assert_ne!(client.read_number(CONFIG, 4, 2), command);
    let _driver = bring_up(&mut client);
    recorder.take();

    recorder.presence.store(1, Ordering::SeqCst);
    assert_eq!(client.status(), 0xff);
    assert_eq!(client.read_number(CONFIG, 0, 4), 0xffff_ffff);
    assert_eq!(client.read_number(BAR0, 0x2000, 4), 0xffff_ffff);
    // The backend is told to release the device.
    assert_eq!(recorder.take(), [Call::Reset(1)]);
    client.set_status(0);
    client.notify(0);
    client.post(BAR4, 5 * 4096, &77u32.to_le_bytes());
    client.write(CONFIG, 4, &[6, 0]).unwrap();
    assert_eq!(client.status(), 0xff);
    assert_eq!(recorder.take(), []);

    recorder.presence.store(2, Ordering::SeqCst);
    assert_eq!(client.read_number(CONFIG, 0, 4), 0x106a_1af4);
    assert_eq!(client.read_number(CONFIG, 4, 2), command);
    recorder.notifier().reset_done(1);
    assert_eq!(client.status(), 0);
    let _driver = bring_up(&mut client);
    assert!(matches!(recorder.take()[..], [Call::Activate { .. }]));

    // The device was absent and came back between two accesses.
    recorder.presence.store(4, Ordering::SeqCst);
    assert_ne!(client.status(), 0, "the reset is under way");
    recorder.notifier().reset_done(2);
    assert_eq!(client.status(), 0);
}

#[test]
fn a_driver_starts_rings_and_resets() {
    let (mut client, recorder, _server) = connect();
    client.post(BAR4, 0, &[1, 0, 0, 0]);
    client.notify(0);
    let (_ram, queue) = bring_up(&mut client);
    let setup = QueueSetup {
        index: 0,
        size: 64,
        descriptors: queue.base,
        driver_area: queue.avail(),
        device_area: queue.used(),
    };
    let features = F_VERSION_1 | F_ACCESS_PLATFORM | 1;
    assert_eq!(
        recorder.take(),
        [Call::Activate {
            features,
            queues: vec![setup]
        }],
        "nothing rings before DRIVER_OK"
    );

    client.notify(3);
    client.notify(6);
    client.post(BAR4, 5 * 4096, &77u32.to_le_bytes());
    client.post(BAR4, 5 * 4096 + 4, &78u32.to_le_bytes());
    client.post(BAR4, 5 * 4096, &[1, 2]);
    client.post(BAR4, 1001 * 4096, &79u32.to_le_bytes());
    let one = |page: u64, value: u32| {
        let mut data = [0; 8];
        data[..4].copy_from_slice(&value.to_le_bytes());
        SmallWrite {
            access: RegionAccess {
                offset: page * 4096,
                region: BAR4,
                count: 4,
            },
            data,
        }
    };
    let mut body = 2u64.to_ne_bytes().to_vec();
    body.extend(one(1, 10).as_bytes());
    body.extend(one(999, 20).as_bytes());
    client
        .send(command::REGION_WRITE_MULTI, &body, &[], true)
        .unwrap();
    client.status();
    let rings = [
        Call::Notify(3),
        Call::Doorbell(5, 77),
        Call::Doorbell(1, 10),
        Call::Doorbell(999, 20),
    ];
    assert_eq!(recorder.take(), rings);

    client.set_status(0);
    assert_ne!(client.status(), 0, "the device still works on the reset");
    client.set_status(0);
    client.notify(0);
    client.set_status(ACKNOWLEDGE_DRIVER);
    assert_eq!(recorder.take(), [Call::Reset(1)]);
    assert_ne!(client.status(), 0);
    recorder.notifier().reset_done(1);
    assert_eq!(client.status(), 0);
    assert_eq!(client.read_number(BAR0, 0x1c, 2), 0, "queue 0 is disabled");
}

#[test]
fn resets_of_the_function_do_not_wait() {
    let (mut client, recorder, _server) = connect();
    let _up = bring_up(&mut client);
    recorder.take();
    client.request(command::DEVICE_RESET, &[], &[]).unwrap();
    assert_eq!(recorder.take(), [Call::Reset(1)]);
    let transactions_pending = 0xb4 + 5;
    assert_eq!(client.read_number(CONFIG, transactions_pending, 1), 1);
    recorder.notifier().reset_done(1);
    assert_eq!(client.read_number(CONFIG, transactions_pending, 1), 0);

    let _up = bring_up(&mut client);
    recorder.take();
    client.write(CONFIG, 0xb4 + 4, &[1]).unwrap();
    assert_eq!(recorder.take(), [Call::Reset(2)], "function-level reset");
}

#[test]
fn interrupts_arrive() {
    let (mut client, recorder, _server) = connect();
    let vectors = client.connect_vectors(7);
    client.reset();
    let _up = bring_up(&mut client);
    client.write(BAR0, 0x10, &0u16.to_le_bytes()).unwrap();
    let notifier = recorder.notifier();
    notifier.queue_used(0);
    wait_signal(&vectors[1]);
    notifier.queue_used(4);
    assert_eq!(
        client.read_number(BAR0, 0x1000, 1),
        1,
        "no vector: the ISR says so"
    );
    assert_eq!(client.read_number(BAR0, 0x1000, 1), 0, "reading clears it");
    notifier.needs_reset();
    wait_signal(&vectors[0]);
    assert_ne!(client.status() & NEEDS_RESET, 0);
    client.set_status(0);
    notifier.reset_done(1);
    assert_eq!(client.status(), 0);
    // A vector that does not exist is refused, which the driver can see.
    client.write(BAR0, 0x10, &7u16.to_le_bytes()).unwrap();
    assert_eq!(client.read_number(BAR0, 0x10, 2), 0xffff);
}

#[test]
fn bad_requests_get_an_error_and_nothing_else_happens() {
    let (mut client, _, _server) = connect();
    let null = std::fs::File::open("/dev/null").unwrap();
    let irq = |flags, start, count| IrqSet {
        argsz: 20,
        flags,
        index: 2,
        start,
        count,
    };
    let eventfd = 4 | 32;
    for (set, fds) in [
        (irq(eventfd, 0, 1), vec![null.as_fd()]),
        (irq(eventfd, u32::MAX, 2), vec![]),
        (irq(eventfd, 0, u32::MAX), vec![]),
        (irq(1 | 32, 6, 2), vec![]),
        (irq(2 | 32, 0, 2), vec![]),
        (irq(0, 0, 0), vec![]),
    ] {
        assert_eq!(
            client.request(command::DEVICE_SET_IRQS, set.as_bytes(), &fds),
            Err(Errno::INVAL),
            "{set:?}"
        );
    }
    assert_eq!(client.read(BAR0, 0x8000, 1), Err(Errno::INVAL));
    assert_eq!(client.read(BAR0, 0, 0), Err(Errno::INVAL));
    assert_eq!(client.read(BAR0, 0, u32::MAX), Err(Errno::INVAL));
    assert_eq!(client.read(BAR0, u64::MAX, 1), Err(Errno::INVAL));
    assert_eq!(client.read(1, 0, 1), Err(Errno::INVAL));
    assert_eq!(client.write(CONFIG, 255, &[0, 0]), Err(Errno::INVAL));
    assert_eq!(client.request(6, &[], &[]), Err(Errno::OPNOTSUPP));
    let ram = Ram::new(0x10000);
    assert_eq!(client.map(&ram.fd, 0, 0, 0x10001), Err(Errno::INVAL));
    assert_eq!(client.map(&ram.fd, u64::MAX, 0, 0x1000), Err(Errno::INVAL));
    client.map(&ram.fd, 0, 0, 0x10000).unwrap();
    let unmap = |flags, size| DmaUnmap {
        argsz: 24,
        flags,
        address: 0,
        size,
    };
    assert_eq!(
        client.request(command::DMA_UNMAP, unmap(0, 0x1000).as_bytes(), &[]),
        Err(Errno::NOENT)
    );
    client
        .request(command::DMA_UNMAP, unmap(dma_flags::ALL, 0).as_bytes(), &[])
        .unwrap();
    client.map(&ram.fd, 0, 0, 0x10000).unwrap();
}

#[test]
fn the_first_message_must_be_a_good_version() {
    let bad = |command: u16, body: &[u8]| {
        let (stream, _, server) = start();
        let mut client = Client::new(stream);
        assert!(client.request(command, body, &[]).is_err());
        assert_eq!(
            client.stream().read(&mut [0]).unwrap(),
            0,
            "and the connection ends"
        );
        assert!(matches!(server.join().unwrap(), Disconnect::Protocol(_)));
    };
    bad(command::DEVICE_GET_INFO, &[0; 16]);
    bad(command::VERSION, &[]);
    bad(command::VERSION, &[9, 0, 0, 0, b'{', b'}', 0]);
    bad(command::VERSION, b"\0\0\x01\0{");
    bad(command::VERSION, b"\0\0\x01\0[1]\0");
    let (mut client, ..) = connect();
    assert_eq!(client.negotiate("{}"), Err(Errno::INVAL), "twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever bytes arrive, the server replies or disconnects; it neither panics nor hangs.
    #[test]
    fn random_bytes_do_no_harm(negotiate: bool, bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (mut stream, _, server) = start();
        if negotiate {
            stream = Client::negotiated(stream).into_stream();
        }
        let _ = stream.write_all(&bytes);
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        prop_assert!(server.join().is_ok());
    }

    /// The server replies to each well-framed but meaningless message, and the next valid request still works.
    #[test]
    fn random_bodies_leave_the_stream_in_step(
        messages in proptest::collection::vec(
            (0u16..20, proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), 0u8..8, any::<u8>()], 0..80)),
            1..20,
        )
    ) {
        let (mut client, recorder, server) = connect();
        for (command, body) in messages {
            let _ = client.request(command, &body, &[]);
            // Completes a reset that the random writes may have started; otherwise it would stay in progress forever.
            if let Some(Call::Reset(generation)) = recorder.take().pop() {
                recorder.notifier().reset_done(generation);
            }
        }
        prop_assert_eq!(client.read_number(CONFIG, 0, 4), 0x106a_1af4);
        drop(client);
        prop_assert!(server.join().is_ok());
    }

    /// Any sequence of accesses to the BARs and to configuration space is survived.
    #[test]
    fn random_accesses_are_survived(
        accesses in proptest::collection::vec(
            (any::<bool>(), prop_oneof![Just(BAR0), Just(2), Just(BAR4), Just(CONFIG)],
             prop_oneof![0u64..0x100, 0x1000u64..0x1004, 0x2000u64..0x2100, 0x4000u64..0x4100],
             prop_oneof![Just(1usize), Just(2), Just(4), Just(8), 0usize..64], any::<u64>()),
            1..100,
        )
    ) {
        let (mut client, recorder, server) = connect();
        for (write, region, offset, len, value) in accesses {
            if write {
                let data: Vec<u8> = value.to_le_bytes().into_iter().cycle().take(len).collect();
                let _ = client.write(region, offset, &data);
            } else {
                let _ = client.read(region, offset, len as u32);
            }
            if let Some(Call::Reset(generation)) = recorder.take().pop() {
                recorder.notifier().reset_done(generation);
            }
        }
        client.reset();
        prop_assert_eq!(client.status(), 0);
        drop(client);
        prop_assert!(server.join().is_ok());
    }
}

#[test]
fn an_impossible_size_ends_the_connection() {
    for size in [0, 15, u32::MAX] {
        let (stream, _, server) = start();
        let mut client = Client::negotiated(stream);
        let mut header = Header::request(7, command::DEVICE_RESET, 0, false);
        header.size = size;
        client.stream().write_all(header.as_bytes()).unwrap();
        assert_eq!(client.stream().read(&mut [0]).unwrap(), 0);
        assert!(matches!(server.join().unwrap(), Disconnect::Protocol(_)));
    }
}
