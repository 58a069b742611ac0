// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The InfiniBand subnet in a configuration.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use vrnic_infiniband::topology::Description;

/// The subnet of the devices with `fabric = "infiniband"`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// Topology of the subnet. Each device is one of its HCAs.
    pub topology: Source,
}

/// Where the topology is described.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Source {
    /// In a file of its own.
    File(PathBuf),
    /// In the configuration itself, as a table with the keys of a topology file.
    Here(Box<Description>),
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FileOrTable;

        impl<'de> Visitor<'de> for FileOrTable {
            type Value = Source;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a topology file, or a table with the keys of one")
            }

            fn visit_str<E>(self, path: &str) -> Result<Source, E> {
                Ok(Source::File(path.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Source, A::Error> {
                let here = Description::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Source::Here(Box::new(here)))
            }
        }

        deserializer.deserialize_any(FileOrTable)
    }
}
