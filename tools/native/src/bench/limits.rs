// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The best that the machine can do, as an upper bound for everything else.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{percentile, sample};

/// A word that has a cache line, and the adjacent line that is prefetched with it, to itself.
#[repr(align(128))]
struct Line(AtomicU32);

/// Returns the median round trip of a cache line between two threads, in nanoseconds, from the best of many windows.
pub fn ping_pong(time: Duration) -> Result<f64> {
    const STOP: u32 = u32::MAX;
    let (ping, pong) = (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)));
    let mut least = f64::MAX;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut expected = 1;
            loop {
                match ping.0.load(Ordering::Acquire) {
                    STOP => return,
                    seen if seen == expected => {
                        pong.0.store(expected, Ordering::Release);
                        expected += 1;
                    }
                    _ => spin_loop(),
                }
            }
        });
        let end = Instant::now() + time;
        let mut round = 0;
        while round == 0 || Instant::now() < end {
            let mut samples = Vec::with_capacity(1000);
            for _ in 0..1000 {
                round += 1;
                let start = Instant::now();
                ping.0.store(round, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != round {
                    spin_loop();
                }
                samples.push(sample(start));
            }
            least = least.min(percentile(&mut samples, 0.5));
        }
        ping.0.store(STOP, Ordering::Release);
    });
    Ok(least)
}

/// Returns how many times per second a buffer of `bytes` can be copied to another, window by window.
pub fn memcpy(bytes: usize, time: Duration) -> Vec<f64> {
    let from = vec![0x5a_u8; bytes];
    let mut to = vec![0_u8; bytes];
    windows(time, bytes, || {
        black_box(&mut to).copy_from_slice(black_box(&from));
    })
}

/// Returns the bytes per second over which the CRC of frames can be computed, in the best window.
pub fn crc(time: Duration) -> f64 {
    let bytes = vec![0x5a_u8; 4096];
    let rates = windows(time, bytes.len(), || {
        black_box(crc32fast::hash(black_box(&bytes)));
    });
    super::best(&rates) * 4096.0
}

/// Returns how many times per second `work`, which handles about `bytes`, can be done, in windows of about a
/// millisecond.
fn windows(time: Duration, bytes: usize, mut work: impl FnMut()) -> Vec<f64> {
    let count = u32::try_from((8 << 20) / bytes.max(256))
        .unwrap_or(1)
        .max(1);
    let end = Instant::now() + time;
    let mut rates = Vec::new();
    while rates.is_empty() || Instant::now() < end {
        let start = Instant::now();
        for _ in 0..count {
            work();
        }
        rates.push(f64::from(count) / start.elapsed().as_secs_f64());
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_time_there_are_limits_all_the_same() {
        let ping_pong = ping_pong(Duration::ZERO).unwrap();
        assert!(ping_pong > 0.0 && ping_pong < f64::MAX, "{ping_pong}");
        assert!(crc(Duration::ZERO) > 0.0);
        assert_eq!(memcpy(8, Duration::ZERO).len(), 1);
    }
}
