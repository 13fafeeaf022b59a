//! What a GPU holds: the limits of one SM and of the whole chip, and how many blocks of a kernel fit on an SM.
//!
//! Sources, by the short names that comments here use:
//!
//! - *guide*: CUDA C++ Programming Guide, "Compute Capabilities", tables "Feature Support" and "Technical
//!   Specifications per Compute Capability", and its sections "Shared Memory" of compute capability 7.x, 8.x and 9.0.
//! - *occupancy*: `cuda_occupancy.h` of CUDA 13.0, the occupancy calculator's arithmetic; its functions are named.
//! - *driver*: `cuda.h` of CUDA 13.0, `cuDevSmResourceSplitByCount`.
//! - Whitepapers, tuning guides and datasheets by their titles, with the product.

const KIB: u32 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Threads of a warp (guide, "Warp size").
const WARP: u32 = 32;
/// Guide, "Maximum number of threads per block".
const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// Guide, "Maximum number of 32-bit registers per thread".
const MAX_REGISTERS_PER_THREAD: u32 = 255;

/// One model of GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSpec {
    /// As the driver's device name has it, without the brand before it; see [`by_name`].
    pub name: &'static str,
    /// Major and minor (guide, "Compute Capabilities").
    pub compute_capability: (u32, u32),
    /// SMs of the chip, as sold (whitepaper of its architecture).
    pub sms: u32,
    /// Resident threads of an SM (guide, "Maximum number of resident threads per SM").
    pub threads_per_sm: u32,
    /// Resident blocks of an SM (guide, "Maximum number of resident blocks per SM").
    pub blocks_per_sm: u32,
    /// Resident warps of an SM (guide, "Maximum number of resident warps per SM").
    pub warps_per_sm: u32,
    /// 32-bit registers of an SM (guide, "Number of 32-bit registers per SM"); one block may have them all.
    pub registers_per_sm: u32,
    /// Registers that a warp's share is rounded up to (occupancy, `cudaOccRegAllocationGranularity`).
    pub register_unit_per_warp: u32,
    /// Parts of an SM's registers; its warps are spread over them evenly, so that as many as fit is a multiple of this
    /// (occupancy, `cudaOccSubPartitionsPerMultiprocessor`).
    pub warp_allocation_granularity: u32,
    /// Most bytes of shared memory of an SM: the largest carveout (guide, "Maximum amount of shared memory per SM").
    pub shared_bytes_per_sm: u32,
    /// Most bytes of shared memory that a block may have, if its kernel opts in (guide, "Maximum amount of shared
    /// memory per thread block").
    pub shared_bytes_per_block_max: u32,
    /// Bytes of shared memory that the system takes of every block besides (guide, "Shared Memory" of 8.x and 9.0;
    /// `cudaDeviceProp::reservedSharedMemPerBlock`).
    pub shared_reserved_per_block: u32,
    /// Bytes that a block's shared memory is rounded up to (occupancy, `cudaOccSMemAllocationGranularity`).
    pub shared_unit_bytes: u32,
    /// Bytes of shared memory that an SM can be set to, rising (guide, "Shared Memory"; occupancy,
    /// `cudaOccAlignUpShmemSizeVoltaPlus`).
    pub carveouts_bytes: &'static [u32],
    /// Bytes of L1 cache and shared memory of an SM, together (guide, "Shared Memory": the unified data cache).
    pub l1_and_shared_bytes_per_sm: u32,
    /// Bytes of L2 cache (whitepaper; `cudaDeviceProp::l2CacheSize`).
    pub l2_bytes: u64,
    /// Peak bytes/s of DRAM, reads and writes together (datasheet).
    pub dram_bytes_per_s: f64,
    /// Highest clock of the SMs, Hz (whitepaper or `cudaDevAttrClockRate`).
    pub sm_clock_hz: f64,
    /// SMs of the smallest Green Context partition, and what every partition is a multiple of (driver); `None` where
    /// the GPU has no Green Contexts.
    pub partition_sms: Option<(u32, u32)>,
    /// Most blocks of a cluster; 1 where there are no clusters. More than 8 only for kernels that opt in (guide,
    /// "Thread Block Clusters").
    pub max_cluster_blocks: u32,
}

/// Tesla V100, SXM2, with 16 or 32 GB: they differ in nothing that stands here.
pub const V100: GpuSpec = GpuSpec {
    name: "V100-SXM2",
    compute_capability: (7, 0),
    sms: 80, // "NVIDIA Tesla V100 GPU Architecture", table 1
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    warps_per_sm: 64,
    registers_per_sm: 65536,
    register_unit_per_warp: 256,
    warp_allocation_granularity: 4,
    shared_bytes_per_sm: 96 * KIB,
    shared_bytes_per_block_max: 96 * KIB,
    shared_reserved_per_block: 0, // begins with 8.0
    shared_unit_bytes: 256,
    carveouts_bytes: &[0, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 96 * KIB],
    l1_and_shared_bytes_per_sm: 128 * KIB,
    l2_bytes: 6 * MIB,           // the same table: 6144 KB
    dram_bytes_per_s: 900e9,     // "Tesla V100" datasheet
    sm_clock_hz: 1530e6,         // the same table, boost; 80 × 64 × 2 × it is the datasheet's 15.7 TFLOPS
    partition_sms: Some((2, 2)), // "7.X: the minimum count is 2 SMs and must be a multiple of 2"
    max_cluster_blocks: 1,
};

/// A100, SXM4, with 80 GB; the one with 40 GB has 1,555 GB/s of DRAM and is not listed.
pub const A100: GpuSpec = GpuSpec {
    name: "A100-SXM4-80GB",
    compute_capability: (8, 0),
    sms: 108, // "NVIDIA A100 Tensor Core GPU Architecture", table 4
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    warps_per_sm: 64,
    registers_per_sm: 65536,
    register_unit_per_warp: 256,
    warp_allocation_granularity: 4,
    shared_bytes_per_sm: 164 * KIB,
    shared_bytes_per_block_max: 163 * KIB,
    shared_reserved_per_block: KIB,
    shared_unit_bytes: 128,
    carveouts_bytes: &[0, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 100 * KIB, 132 * KIB, 164 * KIB],
    l1_and_shared_bytes_per_sm: 192 * KIB,
    l2_bytes: 40 * MIB,          // the same table: 40960 KB
    dram_bytes_per_s: 2039e9,    // "NVIDIA A100" datasheet, A100 80GB SXM
    sm_clock_hz: 1410e6,         // the same table, boost; 108 × 64 × 2 × it is 19.5 TFLOPS
    partition_sms: Some((4, 2)), // "8.X: the minimum count is 4 SMs and must be a multiple of 2"
    max_cluster_blocks: 1,
};

/// GeForce RTX 3090.
pub const RTX_3090: GpuSpec = GpuSpec {
    name: "GeForce RTX 3090",
    compute_capability: (8, 6),
    sms: 82, // "NVIDIA Ampere GA102 GPU Architecture", table of the GeForce RTX 3090
    threads_per_sm: 1536,
    blocks_per_sm: 16,
    warps_per_sm: 48,
    registers_per_sm: 65536,
    register_unit_per_warp: 256,
    warp_allocation_granularity: 4,
    shared_bytes_per_sm: 100 * KIB,
    shared_bytes_per_block_max: 99 * KIB,
    shared_reserved_per_block: KIB,
    shared_unit_bytes: 128,
    carveouts_bytes: &[0, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 100 * KIB],
    l1_and_shared_bytes_per_sm: 128 * KIB,
    l2_bytes: 6 * MIB,           // the same table: 6144 KB
    dram_bytes_per_s: 936e9,     // the same table
    sm_clock_hz: 1695e6,         // the same table, boost; 82 × 128 × 2 × it is its 35.6 TFLOPS
    partition_sms: Some((4, 2)), // as the A100
    max_cluster_blocks: 1,
};

/// H100, SXM5, with 80 GB.
pub const H100: GpuSpec = GpuSpec {
    name: "H100 80GB HBM3",
    compute_capability: (9, 0),
    sms: 132, // "NVIDIA H100 Tensor Core GPU Architecture", H100 SXM5
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    warps_per_sm: 64,
    registers_per_sm: 65536,
    register_unit_per_warp: 256,
    warp_allocation_granularity: 4,
    shared_bytes_per_sm: 228 * KIB,
    shared_bytes_per_block_max: 227 * KIB,
    shared_reserved_per_block: KIB,
    shared_unit_bytes: 128,
    carveouts_bytes: &[0, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 100 * KIB, 132 * KIB, 164 * KIB, 196 * KIB, 228 * KIB],
    l1_and_shared_bytes_per_sm: 256 * KIB,
    l2_bytes: 50 * MIB,          // the same whitepaper: 50 MB; deviceQuery: 52428800
    dram_bytes_per_s: 3350e9,    // "NVIDIA H100" datasheet, H100 SXM; deviceQuery: 2619 MHz × 2 × 5120 bits
    sm_clock_hz: 1980e6,         // deviceQuery; 132 × 128 × 2 × it is the datasheet's 67 TFLOPS
    partition_sms: Some((8, 8)), // "9.0+: the minimum count is 8 SMs and must be a multiple of 8"
    max_cluster_blocks: 16,      // "Hopper Tuning Guide", "Thread Block Clusters": 8, or 16 if the kernel opts in
};

/// H200, SXM: an H100's SMs with more L2 and DRAM. What differs was measured, see profiles/h200/.
pub const H200: GpuSpec = GpuSpec {
    name: "H200",
    l2_bytes: 60 * MIB, // physics.jsonl: 62914560
    // Memory clock of the profiles, 3201 MHz × 2 × 6 stacks of 1024 bits; the "NVIDIA H200" datasheet says 4.8 TB/s.
    dram_bytes_per_s: 3201e6 * 2.0 * 6144.0 / 8.0,
    sm_clock_hz: 1980e6, // clock of the profiles
    ..H100
};

/// Every model that is known.
pub const ALL: &[GpuSpec] = &[V100, A100, RTX_3090, H100, H200];

/// The model of a device that the driver names so; `None` for one that is not in [`ALL`], however similar.
///
/// A brand ("NVIDIA", "Tesla") may stand before the model, and the size of its memory ("-16GB") behind it. Nothing else
/// may: an "RTX 3090 Ti", an "H100 PCIe" or a MIG slice of an H200 has another number of SMs, an "H200 NVL" another
/// clock.
pub fn by_name(device_name: &str) -> Option<&'static GpuSpec> {
    let model = device_name.strip_prefix("NVIDIA ").unwrap_or(device_name);
    let model = model.strip_prefix("Tesla ").unwrap_or(model);
    ALL.iter().find(|spec| model.strip_prefix(spec.name).is_some_and(|rest| rest.is_empty() || is_memory_size(rest)))
}

/// Whether a text is "-", a number and "GB".
fn is_memory_size(text: &str) -> bool {
    let digits = text.strip_prefix('-').and_then(|t| t.strip_suffix("GB"));
    digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
}

/// How many blocks of a kernel an SM holds at once: by one resource as if there were no other limit, and by all. 0
/// where not even one block fits. The arithmetic is the occupancy calculator's.
impl GpuSpec {
    /// By registers (occupancy, `cudaOccMaxBlocksPerSMRegsLimit`).
    pub fn blocks_by_registers(&self, registers_per_thread: u32, threads: u32) -> u32 {
        if registers_per_thread > MAX_REGISTERS_PER_THREAD {
            return 0;
        }
        let per_warp = (registers_per_thread.max(1) * WARP).next_multiple_of(self.register_unit_per_warp);
        let warps_per_part = self.registers_per_sm / self.warp_allocation_granularity / per_warp;
        warps_per_part * self.warp_allocation_granularity / warps(threads)
    }

    /// By shared memory, with the carveout that the SM has (occupancy, `cudaOccMaxBlocksPerSMSmemLimit`): one that is
    /// too small for a block gives 0, though a launch would have it raised. [`blocks_per_sm`](Self::blocks_per_sm) for
    /// a block that takes none.
    pub fn blocks_by_shared(&self, static_bytes: u32, dynamic_bytes: u32, carveout_bytes: u32) -> u32 {
        let asked = static_bytes.saturating_add(dynamic_bytes);
        if asked > self.shared_bytes_per_block_max {
            return 0;
        }
        let taken = (asked + self.shared_reserved_per_block).next_multiple_of(self.shared_unit_bytes);
        carveout_bytes.checked_div(taken).unwrap_or(self.blocks_per_sm)
    }

    /// By warps (occupancy, `cudaOccMaxBlocksPerSMWarpsLimit`).
    pub fn blocks_by_threads(&self, threads: u32) -> u32 {
        if threads > MAX_THREADS_PER_BLOCK { 0 } else { self.warps_per_sm / warps(threads) }
    }

    /// By everything: the least of the three and of [`blocks_per_sm`](Self::blocks_per_sm).
    pub fn block_limit(
        &self,
        threads: u32,
        registers_per_thread: u32,
        static_bytes: u32,
        dynamic_bytes: u32,
        carveout_bytes: u32,
    ) -> u32 {
        self.blocks_per_sm
            .min(self.blocks_by_threads(threads))
            .min(self.blocks_by_registers(registers_per_thread, threads))
            .min(self.blocks_by_shared(static_bytes, dynamic_bytes, carveout_bytes))
    }
}

/// Warps of a block, at least one.
fn warps(threads: u32) -> u32 {
    threads.div_ceil(WARP).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::KernelProfiles;
    use std::path::Path;

    #[test]
    fn limits_are_nsight_computes_for_every_kernel_recorded() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/profiles/h200/kernels.jsonl");
        let profiles = KernelProfiles::read(Path::new(path)).unwrap();
        let gpu = by_name(&profiles.provenance.gpu).unwrap();
        assert_eq!(gpu.sms, profiles.provenance.sms);
        let mut checked = 0;
        let mut differ = Vec::new();
        for k in &profiles.kernels {
            let m = &k.metrics;
            let recorded = [m.block_limit_blocks, m.block_limit_registers, m.block_limit_smem, m.block_limit_warps];
            let [Some(blocks), Some(registers), Some(shared), Some(warps)] = recorded else { continue };
            let Some(carveout) = m.carveout_bytes else { continue };
            let carveout = carveout as u32;
            assert!(gpu.carveouts_bytes.contains(&carveout), "{}: carveout of {carveout} bytes", k.key);
            let threads = k.block.iter().product();
            let recorded = [blocks, registers, shared, warps].map(|x| x as u32);
            let ours = [
                gpu.blocks_per_sm,
                gpu.blocks_by_registers(k.registers, threads),
                gpu.blocks_by_shared(k.static_smem_bytes, k.dynamic_smem_bytes, carveout),
                gpu.blocks_by_threads(threads),
            ];
            let limit = gpu.block_limit(threads, k.registers, k.static_smem_bytes, k.dynamic_smem_bytes, carveout);
            if ours != recorded || Some(limit) != recorded.into_iter().min() {
                differ.push(format!("{}: {ours:?}, least {limit}, recorded {recorded:?}", k.key));
            }
            checked += 1;
        }
        assert!(checked > 100, "only {checked} kernels have the limits");
        assert!(differ.is_empty(), "{} of {checked} differ:\n{}", differ.len(), differ.join("\n"));
    }

    #[test]
    fn models_are_found_by_the_drivers_names_and_no_others() {
        let found = |name| by_name(name).map(|spec| spec.name);
        for (name, spec) in [
            ("Tesla V100-SXM2-16GB", &V100),
            ("Tesla V100-SXM2-32GB", &V100),
            ("NVIDIA A100-SXM4-80GB", &A100),
            ("A100-SXM4-80GB", &A100),
            ("NVIDIA GeForce RTX 3090", &RTX_3090),
            ("GeForce RTX 3090", &RTX_3090),
            ("NVIDIA H100 80GB HBM3", &H100),
            ("NVIDIA H200", &H200),
        ] {
            assert_eq!(found(name), Some(spec.name), "{name}");
        }
        for name in [
            "",
            "NVIDIA",
            "Tesla V100-PCIE-16GB",
            "Tesla V100-SXM2-32GB-LS",
            "Tesla V100-SXM3-32GB",
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA A100 80GB PCIe",
            "NVIDIA GeForce RTX 3090 Ti",
            "NVIDIA H100 PCIe",
            "NVIDIA H100 NVL",
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "NVIDIA H200 NVL",
            "NVIDIA GH200 480GB",
        ] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn every_model_agrees_with_itself() {
        for gpu in ALL {
            let name = gpu.name;
            assert_eq!(gpu.threads_per_sm, gpu.warps_per_sm * WARP, "{name}");
            assert_eq!(gpu.carveouts_bytes.last(), Some(&gpu.shared_bytes_per_sm), "{name}");
            assert!(gpu.carveouts_bytes.is_sorted(), "{name}");
            assert_eq!(
                gpu.shared_bytes_per_block_max + gpu.shared_reserved_per_block,
                gpu.shared_bytes_per_sm,
                "{name}"
            );
            assert!(gpu.shared_bytes_per_sm < gpu.l1_and_shared_bytes_per_sm, "{name}");
            assert_eq!(gpu.blocks_by_shared(gpu.shared_bytes_per_block_max, 0, gpu.shared_bytes_per_sm), 1, "{name}");
        }
    }

    #[test]
    fn limits_at_the_edges() {
        let all = H200.shared_bytes_per_sm;
        assert_eq!(H200.block_limit(1024, 32, 0, 0, all), 2);
        assert_eq!(RTX_3090.block_limit(1024, 32, 0, 0, 100 * KIB), 1);
        // 40 registers: 1,280 a warp, 12 warps in each of the four parts, not 51 in all.
        assert_eq!(V100.blocks_by_registers(40, 96), 16);
        assert_eq!(V100.blocks_by_registers(41, 32), 40);
        assert_eq!(H200.blocks_by_registers(0, 32), 256);
        // A block that could never be launched.
        assert_eq!(H200.blocks_by_registers(65, 1024), 0);
        assert_eq!(H200.blocks_by_registers(256, 32), 0);
        assert_eq!(H200.blocks_by_threads(1025), 0);
        assert_eq!(H200.blocks_by_shared(1, 227 * KIB, all), 0);
        assert_eq!(H200.blocks_by_shared(u32::MAX, u32::MAX, all), 0);
        // The kibibyte that the system takes, from 8.0 on.
        assert_eq!(V100.blocks_by_shared(0, 32 * KIB, 64 * KIB), 2);
        assert_eq!(A100.blocks_by_shared(0, 32 * KIB, 64 * KIB), 1);
        assert_eq!(V100.blocks_by_shared(0, 0, 0), 32);
        assert_eq!(A100.blocks_by_shared(0, 0, 0), 0);
    }
}
