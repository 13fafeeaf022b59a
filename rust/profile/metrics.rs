//! The counters of one kernel: those of the paper's Table 2, and those that §4.1 and §4.4 need.

use serde::{Deserialize, Serialize};

/// How a field is made of Nsight Compute's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// The plain unit (seconds, bytes, a count, a percentage).
    One,
    /// Seconds, kept in nanoseconds.
    ToNs,
}

pub(super) struct Column {
    /// Nsight Compute's name.
    pub name: &'static str,
    /// The plain unit that it must have; empty: a number without one, whatever noun it comes with.
    pub unit: &'static str,
    pub scale: Scale,
    pub set: fn(&mut KernelMetrics, f64),
}

macro_rules! kernel_metrics {
    ($($(#[$doc:meta])* $field:ident = $name:literal in $unit:literal $scale:ident;)*) => {
        /// Counters of one launch alone on the GPU; `None`: not measured. Sources: paper Table 2, §4.1, §4.4.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct KernelMetrics {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<f64>,)*
        }

        /// What Nsight Compute is asked for.
        pub const NCU_METRICS: &[&str] = &[$($name),*];

        pub(super) const COLUMNS: &[Column] = &[$(Column {
            name: $name,
            unit: $unit,
            scale: Scale::$scale,
            set: |m, value| m.$field = Some(value),
        }),*];

        impl KernelMetrics {
            /// Nsight Compute's names of what was not measured.
            pub fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$field.is_none() { missing.push($name); })*
                missing
            }

            /// The fields that were measured, by their names here.
            pub fn measured(&self) -> Vec<(&'static str, f64)> {
                [$((stringify!($field), self.$field)),*].into_iter().filter_map(|(name, v)| Some((name, v?))).collect()
            }
        }
    };
}

kernel_metrics! {
    /// Duration under the profiler, nanoseconds.
    duration_ns = "gpu__time_duration.sum" in "second" ToNs;
    /// Cycles during which an SM had work: mean, least and most over the SMs (§4.1: the order of release).
    sm_active_cycles_avg = "sm__cycles_active.avg" in "cycle" One;
    /// Least; 0 for an SM that got no block.
    sm_active_cycles_min = "sm__cycles_active.min" in "cycle" One;
    /// Most.
    sm_active_cycles_max = "sm__cycles_active.max" in "cycle" One;
    /// DRAM to L2, bytes a second.
    dram_read_bytes_per_s = "dram__bytes_read.sum.per_second" in "byte/second" One;
    /// L2 to DRAM, bytes a second.
    dram_write_bytes_per_s = "dram__bytes_write.sum.per_second" in "byte/second" One;
    /// DRAM to L2, bytes of the whole launch: with a cold cache the data that it reads.
    dram_read_bytes = "dram__bytes_read.sum" in "byte" One;
    /// L2 to DRAM, bytes of the whole launch.
    dram_write_bytes = "dram__bytes_write.sum" in "byte" One;
    /// L2 to L1TEX, 32-byte sectors a second.
    l1_l2_read_sectors_per_s = "lts__t_sectors_srcunit_tex_op_read.sum.per_second" in "sector/second" One;
    /// L1TEX to L2, 32-byte sectors a second.
    l1_l2_write_sectors_per_s = "lts__t_sectors_srcunit_tex_op_write.sum.per_second" in "sector/second" One;
    /// Requests of L1TEX to L2.
    l2_requests = "lts__t_requests_srcunit_tex.sum" in "request" One;
    /// Sectors of those requests.
    l2_sectors = "lts__t_sectors_srcunit_tex.sum" in "sector" One;
    /// L2 hits among sectors, percent; above 100 where the counters of two passes differ.
    l2_hit_pct = "lts__t_sector_hit_rate.pct" in "%" One;
    /// L1 hits among sectors, percent.
    l1_hit_pct = "l1tex__t_sector_hit_rate.pct" in "%" One;
    /// Warps that could issue, of a scheduler, in a cycle.
    eligible_warps = "smsp__warps_eligible.avg.per_cycle_active" in "warp/cycle" One;
    /// Warps that waited for L1TEX (long scoreboard), for each issue.
    long_scoreboard_stalls = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio" in "inst" One;
    /// Warps that waited for the memory input/output queue.
    mio_throttle_stalls = "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio" in "inst" One;
    /// Warps that waited for shared memory or special functions (short scoreboard).
    short_scoreboard_stalls = "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio" in "inst" One;
    /// Resident warps, for each issue: those that waited for anything, and the one that did not.
    all_stalls = "smsp__average_warps_active_per_issue_active.ratio" in "" One;
    /// Instructions a cycle.
    ipc = "sm__inst_executed.avg.per_cycle_active" in "inst/cycle" One;
    /// Pipe utilisation, percent of its peak while the SM is active.
    alu_pct = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active" in "%" One;
    /// FP32.
    fma_pct = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active" in "%" One;
    /// FP16, which runs on the pipes of FP32.
    fp16_pct = "sm__inst_executed_pipe_fma_type_fp16.avg.pct_of_peak_sustained_active" in "%" One;
    /// FP64.
    fp64_pct = "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active" in "%" One;
    /// Transcendentals and conversions.
    xu_pct = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active" in "%" One;
    /// Loads and stores.
    lsu_pct = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active" in "%" One;
    /// Tensor cores.
    tensor_pct = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active" in "%" One;
    /// Instructions that load from shared memory.
    shared_loads = "sm__inst_executed_pipe_lsu_mem_shared_cmd_read.sum" in "inst" One;
    /// From global and local memory.
    global_loads = "sm__inst_executed_pipe_lsu_mem_lg_cmd_read.sum" in "inst" One;
    /// Bank conflicts in shared memory.
    bank_conflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum" in "" One;
    /// Warps resident on an SM, on average over its active cycles.
    warps_active = "sm__warps_active.avg.per_cycle_active" in "warp/cycle" One;
    /// Registers of a thread.
    registers_per_thread = "launch__registers_per_thread" in "register/thread" One;
    /// Static shared memory of a block, bytes.
    static_smem_bytes = "launch__shared_mem_per_block_static" in "byte/block" One;
    /// Dynamic shared memory of a block, bytes.
    dynamic_smem_bytes = "launch__shared_mem_per_block_dynamic" in "byte/block" One;
    /// The SM's carveout for shared memory, bytes.
    carveout_bytes = "launch__shared_mem_config_size" in "byte" One;
    /// Waves.
    waves = "launch__waves_per_multiprocessor" in "" One;
    /// Most blocks on an SM, by what limits them: the hardware's number.
    block_limit_blocks = "launch__occupancy_limit_blocks" in "block" One;
    /// Registers.
    block_limit_registers = "launch__occupancy_limit_registers" in "block" One;
    /// Shared memory.
    block_limit_smem = "launch__occupancy_limit_shared_mem" in "block" One;
    /// Warps.
    block_limit_warps = "launch__occupancy_limit_warps" in "block" One;
}

impl KernelMetrics {
    /// Sectors of an L2 request (Table 2, sector efficiency).
    pub fn sectors_per_request(&self) -> Option<f64> {
        ratio(self.l2_sectors, self.l2_requests)
    }

    /// Stalls that are not for memory, over those that are (Table 2, stall ratio).
    pub fn stall_ratio(&self) -> Option<f64> {
        let long = self.long_scoreboard_stalls?;
        ratio(self.all_stalls.map(|all| (all - long).max(0.0)), Some(long))
    }

    /// Use of the compute pipes (tensor, FMA, XU) over that of the load-store pipe, times shared over global loads
    /// (Table 2). Without loads of either kind the scale is 1.
    pub fn compute_to_lsu(&self) -> Option<f64> {
        let compute = self.tensor_pct? + self.fma_pct? + self.xu_pct?;
        let scale = ratio(self.shared_loads.filter(|n| *n > 0.0), self.global_loads).unwrap_or(1.0);
        ratio(Some(compute * scale), self.lsu_pct)
    }
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    let below = below.filter(|b| *b > 0.0)?;
    Some(above? / below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_what_is_there_is_not() {
        let m = KernelMetrics { waves: Some(1.5), ..Default::default() };
        let missing = m.missing();
        assert_eq!(missing.len(), NCU_METRICS.len() - 1);
        assert!(!missing.contains(&"launch__waves_per_multiprocessor"));
        assert_eq!(m.measured(), [("waves", 1.5)]);
    }

    #[test]
    fn ratios_of_nothing_are_not_measured() {
        let mut m = KernelMetrics { l2_sectors: Some(8.0), l2_requests: Some(2.0), ..Default::default() };
        assert_eq!(m.sectors_per_request(), Some(4.0));
        m.l2_requests = Some(0.0);
        assert_eq!((m.sectors_per_request(), m.stall_ratio(), m.compute_to_lsu()), (None, None, None));
        (m.all_stalls, m.long_scoreboard_stalls) = (Some(6.0), Some(2.0));
        assert_eq!(m.stall_ratio(), Some(2.0));
        (m.tensor_pct, m.fma_pct, m.xu_pct, m.lsu_pct) = (Some(30.0), Some(10.0), Some(0.0), Some(20.0));
        assert_eq!(m.compute_to_lsu(), Some(2.0));
        (m.shared_loads, m.global_loads) = (Some(30.0), Some(10.0));
        assert_eq!(m.compute_to_lsu(), Some(6.0));
    }

    #[test]
    fn names_are_distinct() {
        let distinct: std::collections::HashSet<_> = NCU_METRICS.iter().collect();
        assert_eq!(distinct.len(), NCU_METRICS.len());
    }
}
