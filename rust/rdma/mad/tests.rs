// SPDX-License-Identifier: GPL-2.0

//! Tests of management datagrams.

use crate::testing::prelude::*;

#[kunit_tests(rdma_mad)]
mod cases {
    use super::*;
    use crate::mad::{
        Outcome,
        LENGTH, //
    };

    /// Processes a datagram. Its first byte tells the driver the outcome.
    fn process(
        device: &Device<TestDriver>,
        flags: u32,
        port: u32,
        source: Option<&bindings::ib_wc>,
        outcome: u8,
        room: usize,
    ) -> Result<(c_int, [u8; LENGTH])> {
        let mut mad = [7; LENGTH];
        mad[0] = outcome;
        let mut answer = [0xee; LENGTH];
        let (mut length, mut pkey_index) = (room, 0);
        let result = verb!(
            device,
            process_mad(
                device.as_raw(),
                flags as c_int,
                port,
                source.map_or(ptr::null(), ptr::from_ref),
                ptr::null(),
                mad.as_ptr().cast(),
                answer.as_mut_ptr().cast(),
                &raw mut length,
                &raw mut pkey_index,
            )
        );
        assert_eq!(length, room.min(LENGTH));
        Ok((result, answer))
    }

    #[test]
    fn a_datagram_is_answered_or_not() -> Result {
        with_device(|device, log| {
            let (passed, consumed, answered) = (1, 5, 3);
            let (result, answer) = process(device, 0, 1, None, 0, LENGTH)?;
            assert_eq!((result, answer), (passed, [0xee; LENGTH]));
            assert_eq!(log.asked(), Some(Asked::Mad(Port::FIRST, None, false)));
            let (result, answer) = process(device, 0, 1, None, 1, LENGTH)?;
            assert_eq!((result, answer), (consumed, [0xee; LENGTH]));
            // No byte of the buffer's old contents remains in the answer.
            let (result, answer) = process(device, 0, 1, None, 2, LENGTH + 8)?;
            let mut expected = [0; LENGTH];
            expected[LENGTH - 1] = 7;
            assert_eq!((result, answer), (answered, expected));
            for outcome in [Outcome::Passed, Outcome::Consumed, Outcome::Answered] {
                assert!(outcome.raw() & 1 != 0);
            }
            Ok(())
        })
    }

    #[test]
    fn it_is_known_where_a_datagram_came_from() -> Result {
        with_device(|device, log| {
            let wc = bindings::ib_wc {
                src_qp: 1,
                pkey_index: 2,
                slid: 0x1234,
                sl: 4,
                dlid_path_bits: 5,
                ..Default::default()
            };
            let ignored = bindings::ib_process_mad_flags_IB_MAD_IGNORE_MKEY;
            process(device, ignored, 2, Some(&wc), 0, LENGTH)?;
            let source = Source {
                qpn: 1,
                pkey_index: 2,
                service_level: 4,
                header: None,
                mac: None,
                vlan: None,
                lid: (0x1234, 5),
            };
            assert_eq!(
                log.asked(),
                Some(Asked::Mad(second_port()?, Some(source), true))
            );
            Ok(())
        })
    }

    #[test]
    fn what_cannot_be_answered_fails() -> Result {
        with_device(|device, log| {
            log.asked();
            // There is no such port, or not enough room for the answer.
            assert_eq!(process(device, 0, 3, None, 2, LENGTH)?.0, 0);
            assert_eq!(process(device, 0, 1, None, 2, LENGTH - 1)?.0, 0);
            assert_eq!(log.asked(), None);
            // The driver fails.
            let (result, answer) = process(device, 0, 1, None, 3, LENGTH)?;
            assert_eq!((result, answer), (0, [0xee; LENGTH]));
            Ok(())
        })
    }
}
