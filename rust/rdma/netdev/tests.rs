// SPDX-License-Identifier: GPL-2.0

//! Tests of the pairing with network devices.

use super::*;

#[kunit_tests(rdma_netdev)]
mod cases {
    use super::*;

    use crate::testing::device::{
        Ethernet,
        TestDevice, //
    };

    const MAC: [u8; 6] = [2, 0, 0, 0x7e, 0x57, 2];
    const ANOTHER: [u8; 6] = [2, 0, 0, 0x7e, 0x57, 3];

    /// An RDMA device with one port, whose network device has the address `MAC`.
    struct Paired {
        // Dropped first.
        _pairing: Pin<KBox<Pairing>>,
        device: TestDevice,
    }

    impl Paired {
        fn new() -> Result<Self> {
            Self::with(|_, netdev, _| netdev.ethernet_address() == Some(MAC))
        }

        fn with(
            is_netdev_of: unsafe fn(*mut bindings::ib_device, &Netdev, Port) -> bool,
        ) -> Result<Self> {
            let device = TestDevice::new()?;
            // SAFETY: The device is not shared, and outlives the pairing.
            let pairing = unsafe {
                (*device.as_raw()).phys_port_cnt = 1;
                Pairing::new(
                    device.as_raw(),
                    Port::FIRST,
                    Driver {
                        follow: |_, _| (),
                        is_netdev_of,
                    },
                )
            };
            Ok(Self {
                _pairing: KBox::pin_init(pairing, GFP_KERNEL)?,
                device,
            })
        }

        fn netdev(&self) -> Option<Held> {
            // SAFETY: The device is valid.
            unsafe { Netdev::of_port(self.device.as_raw(), Port::FIRST) }
        }

        fn has(&self, netdev: &Ethernet) -> bool {
            self.netdev()
                .is_some_and(|bound| bound.as_raw() == netdev.as_raw())
        }
    }

    #[test]
    fn a_network_device_that_is_there_before_is_found() -> Result {
        let other = Ethernet::new(&ANOTHER)?;
        let netdev = Ethernet::new(&MAC)?;
        let paired = Paired::new()?;
        assert!(paired.has(&netdev));
        // The other network device may go away.
        drop(other);
        assert!(paired.has(&netdev));
        Ok(())
    }

    #[test]
    fn the_core_has_its_data_of_ports_before_events_come() -> Result {
        let paired = Paired::new()?;
        assert!(paired.netdev().is_none());
        // SAFETY: The device is valid.
        assert!(!unsafe { (*paired.device.as_raw()).port_data }.is_null());
        Ok(())
    }

    #[test]
    fn a_network_device_comes_and_goes() -> Result {
        let paired = Paired::new()?;
        for _ in 0..2 {
            assert!(paired.netdev().is_none());
            let other = Ethernet::new(&ANOTHER)?;
            assert!(paired.netdev().is_none());
            let netdev = Ethernet::new(&MAC)?;
            assert!(paired.has(&netdev));
            // A second network device with the same address is not bound.
            let double = Ethernet::new(&MAC)?;
            assert!(paired.has(&netdev));
            drop((double, other));
            assert!(paired.has(&netdev));
        }
        Ok(())
    }

    #[test]
    fn a_network_device_without_a_permanent_address_has_none() -> Result {
        // This is what software devices have: veth, dummy, bridge.
        let software = Ethernet::new(&[0; 6])?;
        let group = Ethernet::new(&[0x33, 0x33, 0, 0, 0, 1])?;
        let paired = Paired::with(|_, netdev, _| {
            matches!(netdev.ethernet_address(), Some([0, ..] | [0x33, ..]))
        })?;
        assert!(paired.netdev().is_none());
        drop((software, group));
        Ok(())
    }

    #[test]
    fn a_network_device_on_top_of_another_is_not_bound() -> Result {
        // A macvlan device has the permanent address of the device below.
        let stacked = Ethernet::stacked(&MAC)?;
        let paired = Paired::new()?;
        assert!(paired.netdev().is_none());
        let netdev = Ethernet::new(&MAC)?;
        assert!(paired.has(&netdev));
        drop(stacked);
        Ok(())
    }

    #[test]
    fn a_network_device_goes_after_the_rdma_device() -> Result {
        let netdev = Ethernet::new(&MAC)?;
        for _ in 0..2 {
            let paired = Paired::new()?;
            assert!(paired.has(&netdev));
        }
        // This waits for all references to be dropped.
        drop(netdev);
        Ok(())
    }

    #[test]
    fn active_is_up_with_a_carrier() -> Result {
        let ethernet = Ethernet::new(&MAC)?;
        let paired = Paired::new()?;
        let netdev = paired.netdev().ok_or(ENOENT)?;
        assert_eq!(netdev.mtu(), 1500);
        assert!(!netdev.is_active());
        ethernet.open()?;
        assert!(netdev.is_active());
        ethernet.lose_carrier();
        assert!(!netdev.is_active());
        Ok(())
    }
}
