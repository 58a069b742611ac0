// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Settings of captures.

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use vrnic_engine::Segment;

use super::Direction;

/// Which packets to capture, and how many.
///
/// Without device, QP and switch, this selects every packet that any RNIC sends, once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Name of the device whose packets are captured, in both directions.
    #[serde(default)]
    pub device: Option<String>,
    /// Number of a queue pair of that device, if only its packets are to be captured.
    #[serde(default)]
    pub qp: Option<u32>,
    /// Whether to capture, once each, every packet that any RNIC sends and every other frame that enters the switch.
    #[serde(default)]
    pub switch: bool,
    /// Number of packets after which the capture ends.
    #[serde(default)]
    pub max_packets: Option<u64>,
    /// Largest size of the file in bytes; the capture ends before that is exceeded.
    #[serde(default)]
    pub max_bytes: Option<u64>,
}

/// A capture that starts with the daemon: a file, and the fields of [`Choice`].
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file; existing contents are lost.
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
    /// Returns what to capture.
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
    /// Checks that the settings are consistent, for devices with these names.
    ///
    /// # Errors
    /// A device does not exist, or settings contradict each other.
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

/// [`Choice`] in the form that the worker uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scope {
    /// Packets that RNICs send.
    Rnics,
    /// Packets that RNICs send, and other frames that enter the switch.
    Switch,
    /// Packets that one device sends and receives.
    Device(usize),
    /// Packets of one of its queue pairs.
    Qp(usize, u32),
}

impl Scope {
    /// Returns the scope of `choice`, for devices with these names.
    pub(super) fn new(choice: &Choice, devices: &[String]) -> Self {
        let named = |wanted: &String| devices.iter().position(|name| name == wanted);
        match (choice.device.as_ref().and_then(named), choice.qp) {
            (Some(device), Some(qp)) => Self::Qp(device, qp),
            (Some(device), None) => Self::Device(device),
            (None, _) if choice.switch => Self::Switch,
            (None, _) => Self::Rnics,
        }
    }

    /// Returns whether to capture a packet that passes a device.
    pub(super) fn has(self, device: usize, direction: Direction, segment: &Segment<'_>) -> bool {
        let qp = match direction {
            Direction::In => segment.destination_qpn,
            Direction::Out => segment.source_qpn,
        };
        self.has_packet(device, direction, qp)
    }

    /// Returns whether to capture a packet of a queue pair of a device.
    pub(super) fn has_packet(self, device: usize, direction: Direction, qp: u32) -> bool {
        match self {
            Self::Rnics | Self::Switch => direction == Direction::Out,
            Self::Device(wanted) => wanted == device,
            Self::Qp(wanted, number) => wanted == device && number == qp,
        }
    }

    /// Returns whether to capture a firing of a device's fault that involved queue pair `qp`, or none if that is 0.
    pub(super) fn has_firing(self, device: usize, qp: u32) -> bool {
        match self {
            Self::Rnics | Self::Switch => true,
            Self::Device(wanted) => wanted == device,
            Self::Qp(wanted, number) => wanted == device && (qp == number || qp == 0),
        }
    }
}
