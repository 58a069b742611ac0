// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! CPU time that the front end takes for a doorbell: `cargo bench -p vrnicd`.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vrnicd::guest_memory::GuestMemory;
use vrnicd::pci::Function;
use vrnicd::stop::Stop;
use vrnicd::vfio_user::journal::Journal;
use vrnicd::vfio_user::message::{Header, RegionAccess, command};
use vrnicd::vfio_user::pci_device::PciDevice;
use vrnicd::vfio_user::stream::MessageStream;
use vrnicd::vfio_user::take_over;
use vrnicd::virtio::{Activation, Backend, DeviceSpec, Notifier};
use zerocopy::IntoBytes;

const DOORBELLS: u32 = 1_000_000;

/// A device that does nothing.
struct Nothing;

impl Backend for Nothing {
    fn activate(&self, _: Activation) {}
    fn reset(&self, _: u64, _: Arc<dyn Notifier>) {}
    fn queue_notify(&self, _: u16) {}
    fn doorbell(&self, _: u32, _: u32) {}
}

/// Returns the nanoseconds for which the calling thread has run.
fn cpu_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|first| first.parse().ok()).unwrap_or(0)
}

/// Posts doorbells, `batch` per write, and returns the nanoseconds per doorbell.
fn measure(batch: u32) -> u64 {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let server = std::thread::spawn(move || {
        let memory = Arc::new(GuestMemory::new());
        let spec = DeviceSpec {
            virtio_id: 42,
            pci_class: [0, 0x80, 2],
            offered_features: 0,
            required_features: 0,
            config: vec![0; 32],
            queues: 6,
            max_queue_size: 256,
            doorbell_pages: 1024,
        };
        let function = Function::new(spec, Arc::new(Nothing), memory.clone());
        let mut device = PciDevice::new(function, memory, None);
        let stop = Arc::new(Stop::new().expect("eventfd"));
        let journal = Journal::new().expect("memfd").0;
        let start = cpu_time();
        take_over(MessageStream::new(ours, stop, journal), &mut device);
        cpu_time() - start
    });
    let access = RegionAccess {
        offset: 0,
        region: 4,
        count: 4,
    };
    let body = [access.as_bytes(), &[0; 4]].concat();
    let header = Header::request(1, command::REGION_WRITE, body.len(), true);
    let bytes = [header.as_bytes(), &body].concat().repeat(batch as usize);
    for _ in 0..DOORBELLS / batch {
        theirs.write_all(&bytes).expect("write");
    }
    drop(theirs);
    server.join().expect("server") / u64::from(DOORBELLS)
}

fn main() {
    for batch in [1, 10, 100] {
        println!("{batch:4} doorbells per write: {} ns each", measure(batch));
    }
}
