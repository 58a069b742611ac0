// SPDX-License-Identifier: GPL-2.0

//! Tests of restarts.

use core::sync::atomic::Ordering::SeqCst;

use kernel::{
    prelude::*,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use super::{
    RestartPolicy,
    Restarter, //
};
use crate::testing::driver::{
    with_bond,
    Bonded, //
};

/// Status of a working device.
const WORKS: u8 = 0xf;

/// Returns how often the queues were deleted, after waiting for `count` or for a timeout.
fn deleted(bond: &Bonded<'_, '_>, count: u32) -> u32 {
    for _ in 0..1000 {
        if bond.transport.deleted.load(SeqCst) >= count {
            break;
        }
        fsleep(Delta::from_millis(10));
    }
    bond.transport.deleted.load(SeqCst)
}

/// Returns the restarter in the driver's data, after waiting for it.
fn restarter(bond: &Bonded<'_, '_>) -> Result<Restarter> {
    for _ in 0..1000 {
        if let Some(restarter) = bond.restarter() {
            return Ok(restarter);
        }
        fsleep(Delta::from_millis(10));
    }
    Err(ETIMEDOUT)
}

/// Waits long enough for an attempt to happen.
fn wait() {
    fsleep(Delta::from_millis(300));
}

#[kunit_tests(virtio_restart)]
mod cases {
    use super::*;

    #[test]
    fn delays_double_and_do_not_overflow() {
        let policy = RestartPolicy {
            attempts: u32::MAX,
            first_delay_ms: 10,
            settled_ms: 0,
        };
        assert_eq!(
            [0, 1, 2, 5].map(|earlier| policy.delay_ms(earlier)),
            [10, 20, 40, 320]
        );
        assert_eq!(
            [31, 32, u32::MAX].map(|earlier| policy.delay_ms(earlier)),
            [u32::MAX; 3]
        );
    }

    #[test]
    fn a_device_that_fails_is_probed_anew() -> Result {
        with_bond(
            |bond| {
                bond.transport.fail();
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 1), 1);
                restarter(bond)?;
                assert_eq!(bond.transport.status(), WORKS);
                assert!(bond.transport.was_locked.load(SeqCst));
                Ok(())
            },
            |transport| {
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (1, 2));
                Ok(())
            },
        )
    }

    #[test]
    fn one_that_fails_again_and_again_is_given_up() -> Result {
        with_bond(
            |bond| {
                for count in 1..=5 {
                    restarter(bond)?.request();
                    assert_eq!(deleted(bond, count), count);
                }
                restarter(bond)?.request();
                wait();
                assert_eq!(bond.transport.deleted.load(SeqCst), 5);
                assert_eq!(bond.transport.status(), WORKS);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_cannot_be_probed_is_tried_again_later() -> Result {
        with_bond(
            |bond| {
                bond.transport.refuses.store(2, SeqCst);
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 1), 1);
                restarter(bond)?;
                assert_eq!(bond.transport.status(), WORKS);
                assert_eq!(bond.transport.refuses.load(SeqCst), 0);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_never_can_be_probed_is_left_without_a_driver() -> Result {
        let mut kept = None;
        let result = with_bond(
            |bond| {
                kept = Some(restarter(bond)?);
                bond.transport.refuses.store(5, SeqCst);
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 1), 1);
                for _ in 0..1000 {
                    if bond.transport.refuses.load(SeqCst) == 0 {
                        break;
                    }
                    fsleep(Delta::from_millis(10));
                }
                wait();
                assert!(bond.restarter().is_none());
                assert_eq!(bond.transport.refuses.load(SeqCst), 0);
                Ok(())
            },
            |transport| {
                // The device was unbound like any other.
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (1, 1));
                Ok(())
            },
        );
        // This has no effect, because there is no driver any more.
        kept.ok_or(ENOENT)?.request();
        result
    }

    #[test]
    fn one_that_fails_while_it_is_probed_is_probed_once_more() -> Result {
        with_bond(
            |bond| {
                bond.transport.asks.store(1, SeqCst);
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 2), 2);
                restarter(bond)?;
                assert_eq!(bond.transport.status(), WORKS);
                wait();
                assert_eq!(bond.transport.deleted.load(SeqCst), 2);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_fails_in_each_probe_is_given_up() -> Result {
        with_bond(
            |bond| {
                let transport = bond.transport;
                // The device has worked for long enough.
                fsleep(Delta::from_millis(1200));
                transport.asks.store(u32::MAX, SeqCst);
                transport.fails.store(u32::MAX, SeqCst);
                let before = transport.probed.load(SeqCst);
                restarter(bond)?.request();
                for _ in 0..1000 {
                    if transport.probed.load(SeqCst) - before >= 5 {
                        break;
                    }
                    fsleep(Delta::from_millis(10));
                }
                wait();
                assert_eq!(transport.probed.load(SeqCst) - before, 5);
                assert!(bond.restarter().is_none());
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_goes_away_meanwhile_is_not_reset() -> Result {
        with_bond(
            |bond| {
                bond.transport.goes.store(true, SeqCst);
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 1), 1);
                wait();
                assert!(bond.restarter().is_none());
                bond.transport.come_back();
                Ok(())
            },
            |transport| {
                assert!(!transport.was_reset_in_vain.load(SeqCst));
                Ok(())
            },
        )
    }

    #[test]
    fn a_reset_by_the_transport_is_a_new_beginning() -> Result {
        with_bond(
            |bond| {
                let kept = restarter(bond)?;
                kept.request();
                bond.reset_prepare()?;
                assert!(bond.restarter().is_none());
                assert_eq!((bond.transport.status(), deleted(bond, 1)), (0, 1));
                // Neither the request before nor this one has an effect.
                kept.request();
                wait();
                assert!(bond.restarter().is_none());
                bond.reset_done()?;
                assert_eq!(bond.transport.status(), WORKS);
                assert!(bond.restarter().is_some());
                wait();
                assert_eq!(bond.transport.deleted.load(SeqCst), 1);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_slept_is_probed_by_another_thread() -> Result {
        with_bond(
            |bond| {
                let transport = bond.transport;
                assert!(!transport.probed_by_work.load(SeqCst));
                // The first probe after sleep fails, and the restart after that does not.
                for fails in [0, 1] {
                    transport.fails.store(fails, SeqCst);
                    let before = transport.probed.load(SeqCst);
                    bond.sleep()?;
                    restarter(bond)?;
                    assert_eq!(transport.status(), WORKS);
                    assert_eq!(transport.probed.load(SeqCst) - before, 1 + fails);
                    assert!(transport.probed_by_work.load(SeqCst));
                }
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_cannot_be_probed_after_a_reset_by_the_transport_is_tried_again() -> Result {
        with_bond(
            |bond| {
                bond.reset_prepare()?;
                bond.transport.fails.store(1, SeqCst);
                assert_eq!(bond.reset_done(), Err(EIO));
                assert!(bond.restarter().is_none());
                restarter(bond)?;
                assert_eq!(bond.transport.status(), WORKS);
                // The first probe, the one that failed, and the restart.
                assert_eq!(bond.transport.probed.load(SeqCst), 3);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_is_bound_during_a_reset_by_the_transport_is_probed_once_more() -> Result {
        with_bond(
            |bond| {
                bond.reset_done()?;
                assert_eq!(bond.transport.deleted.load(SeqCst), 1);
                assert_eq!(bond.transport.probed.load(SeqCst), 2);
                assert_eq!(bond.transport.status(), WORKS);
                assert!(bond.restarter().is_some());
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_is_ready_even_if_its_driver_leaves_that_to_others() -> Result {
        with_bond(
            |bond| {
                bond.transport.leaves_ready.store(true, SeqCst);
                restarter(bond)?.request();
                assert_eq!(deleted(bond, 1), 1);
                for _ in 0..1000 {
                    if bond.transport.status() == WORKS {
                        break;
                    }
                    fsleep(Delta::from_millis(10));
                }
                assert_eq!(bond.transport.status(), WORKS);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_changes_while_it_is_probed_is_told_of_afterwards() -> Result {
        with_bond(
            |bond| {
                bond.transport.changes.store(1, SeqCst);
                restarter(bond)?.request();
                for _ in 0..1000 {
                    if bond.transport.told.load(SeqCst) != 0 {
                        break;
                    }
                    fsleep(Delta::from_millis(10));
                }
                assert_eq!(bond.transport.told.load(SeqCst), 1);
                Ok(())
            },
            |_| Ok(()),
        )
    }

    #[test]
    fn one_that_changes_at_its_end_is_not_told_of() -> Result {
        with_bond(
            |bond| {
                bond.transport.changes_at_end.store(true, SeqCst);
                Ok(())
            },
            |transport| {
                assert_eq!(transport.told.load(SeqCst), 0);
                Ok(())
            },
        )
    }

    #[test]
    fn a_machine_that_is_switched_off_leaves_a_quiet_device() -> Result {
        with_bond(
            |bond| {
                let kept = restarter(bond)?;
                bond.shutdown();
                assert_eq!(bond.transport.status(), 0);
                kept.request();
                wait();
                assert_eq!(bond.transport.status(), 0);
                // The driver still has what it needs to notify its users.
                assert!(bond.restarter().is_some());
                Ok(())
            },
            |transport| {
                assert_eq!((transport.status(), transport.deleted.load(SeqCst)), (1, 1));
                Ok(())
            },
        )
    }
}
