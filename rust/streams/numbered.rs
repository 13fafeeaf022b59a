//! Partitions by number, for callers that cannot hold a [`Partition`].

use super::{Partition, PartitionError, split};
use crate::hook::device::Device;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// A split of a GPU's SMs, as it is reported.
#[derive(Debug, Serialize)]
pub struct Split {
    /// Its number.
    pub partition: i64,
    /// SMs of the partition.
    pub sms: u32,
    /// SMs of the rest.
    pub rest_sms: u32,
}

/// A numbered partition could not be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum NumberedError {
    /// No such partition.
    Unknown(i64),
    /// It gave no stream.
    Partition(PartitionError),
}

impl fmt::Display for NumberedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NumberedError::Unknown(n) => write!(f, "no partition has number {n}: it was never made, or was closed"),
            NumberedError::Partition(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for NumberedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NumberedError::Partition(e) => Some(e),
            NumberedError::Unknown(_) => None,
        }
    }
}

/// The last number, and each partition with its rest.
static OPEN: Mutex<(i64, BTreeMap<i64, [Partition; 2]>)> = Mutex::new((0, BTreeMap::new()));

/// Splits a GPU, as [`split`] does.
pub fn open(device: &'static Device, sms: u32) -> Result<Split, PartitionError> {
    let (part, rest) = split(device, sms)?;
    let mut open = OPEN.lock();
    open.0 += 1;
    let split = Split { partition: open.0, sms: part.sms(), rest_sms: rest.sms() };
    open.1.insert(split.partition, [part, rest]);
    Ok(split)
}

/// A new stream on a partition, or on the rest of its GPU.
pub fn stream(partition: i64, on_rest: bool, priority: i32) -> Result<usize, NumberedError> {
    let open = OPEN.lock();
    let both = open.1.get(&partition).ok_or(NumberedError::Unknown(partition))?;
    both[usize::from(on_rest)].stream(priority).map_err(NumberedError::Partition)
}

/// Destroys a partition and the rest, with their streams.
pub fn close(partition: i64) -> Result<(), NumberedError> {
    let both = OPEN.lock().1.remove(&partition);
    both.map(drop).ok_or(NumberedError::Unknown(partition))
}
