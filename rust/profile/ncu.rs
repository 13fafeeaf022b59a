//! Nsight Compute's tables: `ncu --csv --page raw`.
//!
//! Lines of the tool itself (`==PROF== ...`) come first, then a header, a row of units, and a row for each launch, in
//! the order of launching. Numbers carry thousands separators, and units their prefixes, each column its own.

use super::metrics::{COLUMNS, KernelMetrics, Scale};
use super::unit;
use serde::Serialize;
use std::fmt;

/// One launch as Nsight Compute saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Launch {
    /// Its number in the table, from 0.
    pub id: u64,
    /// The kernel's name, mangled if the table was made so.
    pub name: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Counters.
    pub metrics: KernelMetrics,
}

/// A table was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum NcuError {
    /// The driver gives counters to administrators only.
    NoPermission,
    /// The tool's own error, as it says it.
    Tool(String),
    /// No header: the file holds no table.
    NoTable {
        /// How many lines there are.
        lines: usize,
    },
    /// Not a table of comma-separated values.
    Csv(csv::Error),
    /// The table ends after its header.
    NoUnits,
    /// A column is missing without which launches cannot be told apart.
    NoColumn(&'static str),
    /// A unit that the column cannot have.
    Unit {
        /// The column.
        column: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A value that is no number of its kind.
    Value {
        /// The row, from 1, without header and units.
        row: usize,
        /// The column.
        column: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
}

impl fmt::Display for NcuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NcuError::NoPermission => f.write_str(
                "the driver lets administrators alone read counters (ERR_NVGPUCTRPERM): run as root, or load the \
                 nvidia module with NVreg_RestrictProfilingToAdminUsers=0; durations need no permission",
            ),
            NcuError::Tool(text) => write!(f, "ncu says: {text}"),
            NcuError::NoTable { lines } => {
                write!(f, "no table among {lines} lines, expected the output of ncu --csv --page raw")
            }
            NcuError::Csv(e) => write!(f, "the table cannot be read: {e}"),
            NcuError::NoUnits => f.write_str("the table ends after its header, expected a row of units"),
            NcuError::NoColumn(name) => write!(f, "no column {name:?} in the table, expected that of --page raw"),
            NcuError::Unit { column, found, expected } => {
                write!(f, "column {column}: found the unit {found:?}, expected {expected:?} with or without a prefix")
            }
            NcuError::Value { row, column, found, expected } => {
                write!(f, "row {row}, column {column}: found {found:?}, expected {expected}")
            }
        }
    }
}

impl std::error::Error for NcuError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            NcuError::Csv(e) => Some(e),
            _ => None,
        }
    }
}

/// Where the columns are.
struct Layout {
    id: usize,
    name: usize,
    grid: usize,
    block: usize,
    /// Of those of [`COLUMNS`] that the table has: place, and what its numbers are multiplied with.
    metrics: Vec<(usize, &'static super::metrics::Column, f64)>,
}

/// Reads a table. A counter that a launch lacks (`n/a`, or no such column) is `None` there.
pub fn read(text: &str) -> Result<Vec<Launch>, NcuError> {
    let table = table_of(text)?;
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(table.as_bytes());
    let header = reader.headers().map_err(NcuError::Csv)?.clone();
    let mut records = reader.records();
    let units = records.next().ok_or(NcuError::NoUnits)?.map_err(NcuError::Csv)?;
    let layout = Layout::of(&header, &units)?;
    records.enumerate().map(|(i, record)| layout.launch(i + 1, &record.map_err(NcuError::Csv)?)).collect()
}

/// The table below the tool's own lines.
fn table_of(text: &str) -> Result<&str, NcuError> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with("\"ID\"") {
            return Ok(&text[at..]);
        }
        if let Some(error) = line.strip_prefix("==ERROR==") {
            return Err(match error.contains("ERR_NVGPUCTRPERM") {
                true => NcuError::NoPermission,
                false => NcuError::Tool(error.trim().into()),
            });
        }
        at += line.len();
    }
    Err(NcuError::NoTable { lines: text.lines().count() })
}

impl Layout {
    fn of(header: &csv::StringRecord, units: &csv::StringRecord) -> Result<Layout, NcuError> {
        let place = |name: &str| header.iter().position(|column| column == name);
        let need = |name: &'static str| place(name).ok_or(NcuError::NoColumn(name));
        let mut metrics = Vec::new();
        for column in COLUMNS {
            let Some(at) = place(column.name) else { continue };
            let found = units.get(at).unwrap_or_default();
            let factor = match unit::plain(found) {
                // A count may come with its noun or without.
                Some((factor, unit)) if unit == column.unit || unit.is_empty() || is_count(column.unit, &unit) => {
                    factor
                }
                _ => {
                    let column_name = column.name.to_string();
                    return Err(NcuError::Unit { column: column_name, found: found.into(), expected: column.unit });
                }
            };
            metrics.push((at, column, if column.scale == Scale::ToNs { factor * 1e9 } else { factor }));
        }
        Ok(Layout {
            id: need("ID")?,
            name: need("Kernel Name")?,
            grid: need("Grid Size")?,
            block: need("Block Size")?,
            metrics,
        })
    }

    fn launch(&self, row: usize, record: &csv::StringRecord) -> Result<Launch, NcuError> {
        let text = |at: usize| record.get(at).unwrap_or_default();
        let refused = |column: &str, at: usize, expected| NcuError::Value {
            row,
            column: column.into(),
            found: text(at).into(),
            expected,
        };
        let id = text(self.id).parse().map_err(|_| refused("ID", self.id, "a whole number"))?;
        let size = |column: &str, at| triple(text(at)).ok_or_else(|| refused(column, at, "(x, y, z)"));
        let mut metrics = KernelMetrics::default();
        for (at, column, factor) in &self.metrics {
            match text(*at) {
                "" | "n/a" | "nan" | "-nan" | "inf" | "-inf" => {}
                written => {
                    let value = number(written).ok_or_else(|| refused(column.name, *at, "a number, n/a or nothing"))?;
                    (column.set)(&mut metrics, value * factor);
                }
            }
        }
        Ok(Launch {
            id,
            name: text(self.name).into(),
            grid: size("Grid Size", self.grid)?,
            block: size("Block Size", self.block)?,
            metrics,
        })
    }
}

/// Counts of one thing are named differently by versions of the tool: what they are of does not change the number.
fn is_count(expected: &str, found: &str) -> bool {
    let measures = |unit: &str| ["byte", "second", "%"].iter().any(|m| unit.contains(m));
    !measures(expected) && !measures(found)
}

/// A finite number with thousands separators.
fn number(text: &str) -> Option<f64> {
    let plain: String = text.chars().filter(|c| *c != ',').collect();
    let digits = plain.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    plain.parse().ok().filter(|value: &f64| digits && value.is_finite())
}

/// `(256, 1, 1)`.
fn triple(text: &str) -> Option<[u32; 3]> {
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    let mut parts = inside.split(',').map(|part| part.trim().parse::<u32>().ok().filter(|n| *n > 0));
    let sizes = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "==PROF== Connected to process 4711 (/usr/bin/python3.12)\n\
        ==PROF== Profiling \"fill\" - 0: 0%....100% - 5 passes\n\
        \"ID\",\"Process ID\",\"Kernel Name\",\"Context\",\"Stream\",\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"dram__bytes_read.sum.per_second\",\"gpu__time_duration.sum\",\"launch__shared_mem_config_size\",\"launch__waves_per_multiprocessor\",\"sm__cycles_active.min\",\"something__else.sum\"\n\
        \"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"\",\"Gbyte/second\",\"usecond\",\"Kbyte\",\"\",\"cycle\",\"\"\n\
        \"0\",\"4711\",\"_Z4fillPf\",\"1\",\"7\",\"(256, 1, 1)\",\"(132, 2, 1)\",\"0\",\"9.0\",\"1,234.50\",\"12.80\",\"233.47\",\"0.50\",\"0\",\"x\"\n\
        \"1\",\"4711\",\"_Z4addPf, really\",\"1\",\"7\",\"(32, 4, 2)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"n/a\",\"1,000.00\",\"16.38\",\"23.76\",\"12,345\",\"y\"\n";

    #[test]
    fn a_table_is_read_in_plain_units() {
        let launches = read(TABLE).unwrap();
        assert_eq!(launches.len(), 2);
        let (a, b) = (&launches[0], &launches[1]);
        assert_eq!((a.id, a.name.as_str(), a.grid, a.block), (0, "_Z4fillPf", [132, 2, 1], [256, 1, 1]));
        assert_eq!((b.id, b.name.as_str(), b.grid, b.block), (1, "_Z4addPf, really", [1, 1, 1], [32, 4, 2]));
        let near = |got: Option<f64>, want: f64| assert!((got.unwrap() / want - 1.0).abs() < 1e-9, "{got:?} {want}");
        near(a.metrics.dram_read_bytes_per_s, 1.2345e12);
        near(a.metrics.duration_ns, 12_800.0);
        near(b.metrics.duration_ns, 1e6);
        near(a.metrics.carveout_bytes, 233_470.0);
        assert_eq!((a.metrics.sm_active_cycles_min, b.metrics.sm_active_cycles_min), (Some(0.0), Some(12_345.0)));
        assert_eq!(b.metrics.dram_read_bytes_per_s, None);
        assert!(b.metrics.missing().contains(&"dram__bytes_read.sum.per_second"));
        assert_eq!(a.metrics.ipc, None, "a column that the table lacks");
    }

    #[test]
    fn refusals_say_what_was_found() {
        let no_permission = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU \
                             Performance Counters on the target device 0.\n";
        let cases = [
            (no_permission.to_string(), "NVreg_RestrictProfilingToAdminUsers=0"),
            ("==ERROR== No kernels were profiled.\n".into(), "ncu says: No kernels were profiled."),
            ("hello\nworld\n".into(), "no table among 2 lines"),
            (String::new(), "no table among 0 lines"),
            (TABLE.lines().take(3).collect::<Vec<_>>().join("\n"), "expected a row of units"),
            (TABLE.replace("Grid Size", "Grid"), "no column \"Grid Size\""),
            (
                TABLE.replace("usecond", "furlong"),
                "gpu__time_duration.sum: found the unit \"furlong\", expected \"second\"",
            ),
            (TABLE.replace("usecond", "byte"), "found the unit \"byte\""),
            (TABLE.replace("12.80", "fast"), "row 1, column gpu__time_duration.sum: found \"fast\", expected a number"),
            (TABLE.replace("(1, 1, 1)", "(1, 1)"), "row 2, column Grid Size: found \"(1, 1)\", expected (x, y, z)"),
            (TABLE.replace("(1, 1, 1)", "(0, 1, 1)"), "row 2, column Grid Size"),
            (TABLE.replace(",\"y\"", ""), "the table cannot be read"),
        ];
        for (text, says) in cases {
            let e = read(&text).unwrap_err().to_string();
            assert!(e.contains(says), "{says}: {e}");
        }
    }

    /// Any bytes give launches or an error, never a panic, and never a number that is not finite.
    #[test]
    fn damaged_tables_are_read_or_refused() {
        let mut x = 3u64;
        let mut next = |n: usize| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as usize % n
        };
        let mut read_well = 0;
        for _ in 0..20_000 {
            let mut bytes = TABLE.as_bytes().to_vec();
            for _ in 0..1 + next(4) {
                let at = next(bytes.len());
                match next(4) {
                    0 => bytes[at] = b"\",\n()0.en%/="[next(12)],
                    1 if bytes.len() > 1 => drop(bytes.remove(at)),
                    2 => bytes.insert(at, next(256) as u8),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            if let Ok(launches) = read(&String::from_utf8_lossy(&bytes)) {
                read_well += 1;
                for launch in launches {
                    let m = &launch.metrics;
                    assert!([m.duration_ns, m.dram_read_bytes_per_s].into_iter().flatten().all(f64::is_finite));
                }
            }
        }
        assert!(read_well > 100, "the damage is always fatal: {read_well}");
    }
}
