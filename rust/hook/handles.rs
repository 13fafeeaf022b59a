//! A map from driver handles to numbers that is read without a lock, from the launch path.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Open addressing over atomics. Reads are wait-free; writers take a lock. Keys are never 0; a value of 0 means
/// absent. A removed key keeps its place (handles are reused), so readers never see a hole appear.
pub struct HandleMap<const N: usize> {
    keys: [AtomicUsize; N],
    values: [AtomicUsize; N],
    writer: Mutex<()>,
}

impl<const N: usize> HandleMap<N> {
    /// The empty map.
    pub const fn new() -> Self {
        HandleMap {
            keys: [const { AtomicUsize::new(0) }; N],
            values: [const { AtomicUsize::new(0) }; N],
            writer: Mutex::new(()),
        }
    }

    fn start(key: usize) -> usize {
        // Handles are addresses: the low bits say nothing.
        ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % N
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, key: usize) -> Option<usize> {
        let mut i = Self::start(key);
        for _ in 0..N {
            match self.keys[i].load(Ordering::Acquire) {
                k if k == key => {
                    return Some(self.values[i].load(Ordering::Acquire)).filter(|v| *v != 0);
                }
                0 => return None,
                _ => i = (i + 1) % N,
            }
        }
        None
    }

    /// Sets the value of `key`. False when the map is full.
    pub fn set(&self, key: usize, value: usize) -> bool {
        let _writer = self.writer.lock();
        let mut i = Self::start(key);
        for _ in 0..N {
            let k = self.keys[i].load(Ordering::Relaxed);
            if k == key || k == 0 {
                // The value first: a reader that sees the key must find it.
                self.values[i].store(value, Ordering::Release);
                self.keys[i].store(key, Ordering::Release);
                return true;
            }
            i = (i + 1) % N;
        }
        false
    }

    /// Forgets `key`.
    pub fn remove(&self, key: usize) {
        if self.get(key).is_some() {
            self.set(key, 0);
        }
    }

    /// Forgets all values.
    pub fn clear(&self) {
        let _writer = self.writer.lock();
        for v in &self.values {
            v.store(0, Ordering::Release);
        }
    }
}

impl<const N: usize> Default for HandleMap<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_map() {
        let map = HandleMap::<64>::new();
        let mut oracle = std::collections::HashMap::new();
        let mut x = 1u64;
        for _ in 0..5_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = 16 * (1 + (x >> 33) as usize % 48);
            match x >> 62 {
                0 => {
                    map.remove(key);
                    oracle.remove(&key);
                }
                _ => {
                    assert!(map.set(key, x as usize | 1));
                    oracle.insert(key, x as usize | 1);
                }
            }
            for k in (16..=768).step_by(16) {
                assert_eq!(map.get(k), oracle.get(&k).copied());
            }
        }
    }

    #[test]
    fn a_full_map_says_so_and_loses_nothing() {
        let map = HandleMap::<8>::new();
        assert!((1..=8).all(|k| map.set(k, k * 10)));
        assert!(!map.set(9, 90));
        assert!((1..=8).all(|k| map.get(k) == Some(k * 10)));
        assert_eq!(map.get(9), None);
    }
}
