//! What a kernel is: its launch configuration and its identity.

use serde::{Deserialize, Serialize};

/// The part of a launch that changes what a kernel costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub dynamic_smem_bytes: u32,
    /// Blocks of a cluster in x, y, z; `[0, 0, 0]` where the launch names none.
    pub cluster: [u32; 3],
}

/// Identity of a kernel across processes: see [`KernelId::new`]. In files it is 16 hexadecimal digits in lower
/// case: a JSON number would lose bits in many readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KernelId(pub u64);

impl From<KernelId> for String {
    fn from(id: KernelId) -> String {
        format!("{:016x}", id.0)
    }
}

impl TryFrom<String> for KernelId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let id = u64::from_str_radix(&text, 16).ok().filter(|_| digits);
        id.map(KernelId).ok_or_else(|| format!("kernel_id is {text:?}, expected 16 hexadecimal digits in lower case"))
    }
}

impl KernelId {
    /// 64-bit FNV-1a over (mangled name, module image, launch configuration).
    ///
    /// A name alone is no identity: Inductor numbers its kernels per module, and one name with one grid can be
    /// different code. `image_hash` tells such modules apart. The hash is fixed: profiles on disk hold it.
    pub fn new(mangled_name: &[u8], image_hash: u64, config: &LaunchConfig) -> Self {
        Self::of_function(Self::function_hash(mangled_name, image_hash), config)
    }

    /// The part of the hash that is the same for all launches of a function.
    pub fn function_hash(mangled_name: &[u8], image_hash: u64) -> Fnv {
        let mut h = Fnv::new();
        h.write(mangled_name);
        h.write(&[0]);
        h.write(&image_hash.to_le_bytes());
        h
    }

    /// The identity of a launch of a function whose own part is known.
    #[inline]
    pub fn of_function(function: Fnv, config: &LaunchConfig) -> Self {
        let mut h = function;
        for v in config.grid.iter().chain(&config.block) {
            h.write(&v.to_le_bytes());
        }
        h.write(&config.dynamic_smem_bytes.to_le_bytes());
        for v in &config.cluster {
            h.write(&v.to_le_bytes());
        }
        KernelId(h.finish())
    }
}

/// FNV-1a, 64 bits: stable across builds and machines, unlike std's hashers.
#[derive(Clone, Copy, Debug)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self::new()
    }
}

impl Fnv {
    /// The empty hash.
    pub const fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash so far.
    pub const fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_fixed_because_profiles_hold_it() {
        let c = LaunchConfig { grid: [132, 1, 1], block: [256, 1, 1], dynamic_smem_bytes: 1024, cluster: [0; 3] };
        assert_eq!(KernelId::new(b"_Z3fooPf", 7, &c), KernelId(0x7a71_097c_9443_dc47));
    }

    /// Fault: an id that lost its leading zeros, a second spelling of it, or a sign that `from_str_radix` takes.
    #[test]
    fn id_is_sixteen_digits_in_files() {
        let id = KernelId(0x00ab_0000_0000_0001);
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"00ab000000000001\"");
        assert_eq!(serde_json::from_str::<KernelId>("\"00ab000000000001\"").unwrap(), id);
        for wrong in ["\"ab000000000001\"", "\"+0ab000000000001\"", "\"00AB000000000001\"", "\"00ab00000000000g\"", "7"]
        {
            assert!(serde_json::from_str::<KernelId>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn id_tells_every_part_apart() {
        let c = LaunchConfig { grid: [2, 1, 1], block: [32, 1, 1], ..Default::default() };
        let base = KernelId::new(b"a", 0, &c);
        let others = [
            KernelId::new(b"b", 0, &c),
            KernelId::new(b"a", 1, &c),
            KernelId::new(b"a", 0, &LaunchConfig { grid: [1, 2, 1], ..c }),
            KernelId::new(b"a", 0, &LaunchConfig { block: [64, 1, 1], ..c }),
            KernelId::new(b"a", 0, &LaunchConfig { dynamic_smem_bytes: 1, ..c }),
            KernelId::new(b"a", 0, &LaunchConfig { cluster: [2, 1, 1], ..c }),
        ];
        assert!(others.iter().all(|o| *o != base));
    }
}
