// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What to capture.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use vrnic_engine::Segment;

use super::Direction;

/// Which packets to capture, and how many.
///
/// Without device, QP and switch: every packet that any RNIC sends, once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Name of the one device whose packets, in both directions, are captured.
    #[serde(default)]
    pub device: Option<String>,
    /// Number of the one queue pair of that device.
    #[serde(default)]
    pub qp: Option<u32>,
    /// Every packet that any RNIC sends, and every other frame that the switch is given, once.
    #[serde(default)]
    pub switch: bool,
    /// The capture ends after so many packets.
    #[serde(default)]
    pub max_packets: Option<u64>,
    /// The capture ends before the file has more than so many bytes.
    #[serde(default)]
    pub max_bytes: Option<u64>,
}

/// A capture that begins with the daemon: a file, and [`Choice`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file; what was in it is lost.
    pub file: PathBuf,
    /// See [`Choice::device`].
    pub device: Option<String>,
    /// See [`Choice::qp`].
    pub qp: Option<u32>,
    /// See [`Choice::switch`].
    #[serde(default)]
    pub switch: bool,
    /// See [`Choice::max_packets`].
    pub max_packets: Option<u64>,
    /// See [`Choice::max_bytes`].
    pub max_bytes: Option<u64>,
}

impl Settings {
    /// What goes to the file.
    pub fn choice(&self) -> Choice {
        Choice {
            device: self.device.clone(),
            qp: self.qp,
            switch: self.switch,
            max_packets: self.max_packets,
            max_bytes: self.max_bytes,
        }
    }
}

impl Choice {
    /// Checks that the settings go together, for devices of these names.
    ///
    /// # Errors
    /// They do not; the message says why.
    pub fn check<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
        match &self.device {
            Some(device) if !names.any(|name| name == device) => {
                bail!("capture names the device `{device}`, which does not exist")
            }
            Some(_) if self.switch => {
                bail!("capture: give a device or the switch, not both")
            }
            None if self.qp.is_some() => {
                bail!(
                    "capture of a QP needs its device, because each device has its own QP numbers"
                )
            }
            _ => Ok(()),
        }
    }
}

/// [`Choice`], for the worker.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope {
    /// What RNICs send.
    Rnics,
    /// That, and what else the switch is given.
    Switch,
    /// What one device sends and receives.
    Device(usize),
    /// What one of its queue pairs does.
    Qp(usize, u32),
}

impl Scope {
    /// What was chosen, for devices of these names.
    pub(super) fn new(choice: &Choice, devices: &[String]) -> Self {
        let named = |wanted: &String| devices.iter().position(|name| name == wanted);
        match (choice.device.as_ref().and_then(named), choice.qp) {
            (Some(device), Some(qp)) => Self::Qp(device, qp),
            (Some(device), None) => Self::Device(device),
            (None, _) if choice.switch => Self::Switch,
            (None, _) => Self::Rnics,
        }
    }

    /// Whether a packet that passes a device is to be captured.
    pub(super) fn has(self, device: usize, direction: Direction, segment: &Segment<'_>) -> bool {
        let qp = match direction {
            Direction::In => segment.destination_qpn,
            Direction::Out => segment.source_qpn,
        };
        self.has_packet(device, direction, qp)
    }

    /// Whether a packet of a queue pair of a device is to be captured.
    pub(super) fn has_packet(self, device: usize, direction: Direction, qp: u32) -> bool {
        match self {
            Self::Rnics | Self::Switch => direction == Direction::Out,
            Self::Device(wanted) => wanted == device,
            Self::Qp(wanted, number) => wanted == device && number == qp,
        }
    }

    /// Whether a firing of a fault of a device is to be captured, which was about that queue pair, or 0 if about none.
    pub(super) fn has_firing(self, device: usize, qp: u32) -> bool {
        match self {
            Self::Rnics | Self::Switch => true,
            Self::Device(wanted) => wanted == device,
            Self::Qp(wanted, number) => wanted == device && (qp == number || qp == 0),
        }
    }
}
