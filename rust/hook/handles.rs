//! A map from driver handles to numbers that is read without a lock, from the launch path.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Open addressing over atomics. Reads are wait-free; writers take a lock. Keys are never 0; a value of 0 means
/// absent. A removed key keeps its place until another takes it, so readers never see a hole appear.
pub struct HandleMap<const N: usize> {
    keys: [AtomicUsize; N],
    values: [AtomicUsize; N],
    writer: Mutex<()>,
}

/// The key of a place that is being given to another one; no handle has this value.
const NOBODY: usize = usize::MAX;

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
                    let value = self.values[i].load(Ordering::Acquire);
                    // The place may have gone to another key meanwhile, and the value with it.
                    let still = self.keys[i].load(Ordering::Relaxed) == key;
                    return (value != 0 && still).then_some(value);
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
        let mut place = None;
        for _ in 0..N {
            let k = self.keys[i].load(Ordering::Relaxed);
            if k == key {
                self.values[i].store(value, Ordering::Release);
                return true;
            }
            if place.is_none() && (k == 0 || self.values[i].load(Ordering::Relaxed) == 0) {
                place = Some(i);
            }
            if k == 0 {
                break;
            }
            i = (i + 1) % N;
        }
        let Some(i) = place else { return false };
        // Nobody's, then the value, then the key: a reader of the old key that sees the value sees that the key is gone,
        // and one that sees the new key finds its value.
        if self.keys[i].load(Ordering::Relaxed) != 0 {
            self.keys[i].store(NOBODY, Ordering::Relaxed);
        }
        self.values[i].store(value, Ordering::Release);
        self.keys[i].store(key, Ordering::Release);
        true
    }

    /// Forgets `key`.
    pub fn remove(&self, key: usize) {
        if self.get(key).is_some() {
            self.set(key, 0);
        }
    }

    /// Forgets the keys whose value `is_gone`.
    pub fn remove_where(&self, is_gone: impl Fn(usize) -> bool) {
        let _writer = self.writer.lock();
        for v in &self.values {
            let value = v.load(Ordering::Relaxed);
            if value != 0 && is_gone(value) {
                v.store(0, Ordering::Release);
            }
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
    fn removed_keys_make_room() {
        let map = HandleMap::<64>::new();
        for key in 1..10_000 {
            assert!(map.set(key, key), "no room for key {key}");
            assert_eq!(map.get(key), Some(key));
            if key > 40 {
                map.remove(key - 40);
                assert_eq!(map.get(key - 40), None);
            }
        }
        map.remove_where(|value| value % 2 == 0);
        assert_eq!((map.get(9_999), map.get(9_998)), (Some(9_999), None));
    }

    /// Fault: a reader of a removed key gets the value of the key that took its place.
    #[test]
    fn readers_never_see_the_value_of_another_key() {
        let map = HandleMap::<16>::new();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        (1..=32).for_each(|key| assert!(map.get(key).is_none_or(|value| value == key)));
                    }
                });
            }
            for i in 0..200_000usize {
                let key = 1 + i % 32;
                assert!(map.set(key, key));
                map.remove(key);
            }
            done.store(true, Ordering::Relaxed);
        });
    }

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
