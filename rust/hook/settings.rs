//! What a user may set: by `MOSAIC_*` variables at start, by `configure()` later.

use crate::sched::Limits;
use serde::{Deserialize, Serialize};

/// All settings; README documents each.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `idle-only` (default), or `none`: roles and priorities without a gate.
    pub policy: PolicyName,
    /// Cap on BE time in flight, as a fraction of the smallest isolated HP service time.
    pub in_flight_fraction: f64,
    /// Longest wait of one BE launch; then one kernel goes, and is counted.
    pub max_wait_ms: f64,
    /// With this much BE work left on the GPU the next launch may go, however long it is.
    pub launch_lead_us: f64,
    /// How long HP must have been idle before BE is let in.
    pub settle_us: f64,
    /// How long an open HP request may be silent with an idle GPU before BE goes on, one kernel at a time. The
    /// larger of this and the request's isolated time counts.
    pub stall_ms: f64,
    /// Isolated requests that give an HP job's T_iso. 0: no calibration.
    pub calibration_requests: u32,
    /// Longest calibration, from the job's first request.
    pub calibration_max_s: f64,
    /// How long a held BE launch polls without sleeping once the end of its wait is near.
    pub spin_us: f64,
}

/// The policies that can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// BE only while no HP request is active.
    IdleOnly,
    /// No gate: stream priorities alone.
    None,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = Limits::default();
        Settings {
            policy: PolicyName::IdleOnly,
            in_flight_fraction: limits.in_flight_fraction,
            max_wait_ms: limits.max_wait_ns as f64 / 1e6,
            launch_lead_us: limits.launch_lead_ns as f64 / 1e3,
            settle_us: limits.settle_ns as f64 / 1e3,
            stall_ms: 20.0,
            calibration_requests: 200,
            calibration_max_s: 5.0,
            spin_us: 100.0,
        }
    }
}

/// A setting was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not the JSON object that is expected.
    Json(serde_json::Error),
    /// A value of no use.
    Value {
        /// The setting, or the variable.
        name: String,
        /// What was given.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A number outside its range.
    Range {
        /// The setting.
        name: &'static str,
        /// What was given.
        found: f64,
        /// Smallest and largest accepted value.
        expected: (f64, f64),
    },
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SettingsError::Json(e) => write!(f, "settings not understood: {e}"),
            SettingsError::Value { name, found, expected } => {
                write!(f, "{name}: found {found}, expected {expected}")
            }
            SettingsError::Range { name, found, expected: (low, high) } => {
                write!(f, "setting {name}: found {found}, expected {low} to {high}")
            }
        }
    }
}

impl std::error::Error for SettingsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SettingsError::Json(e) => Some(e),
            SettingsError::Range { .. } | SettingsError::Value { .. } => None,
        }
    }
}

impl Settings {
    /// These settings with those of a JSON object put over them.
    pub fn merged(&self, json: &str) -> Result<Settings, SettingsError> {
        let change: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(json).map_err(SettingsError::Json)?;
        change.into_iter().try_fold(*self, |settings, (name, value)| settings.with(&name, value, &name))
    }

    /// The defaults with `MOSAIC_<NAME>` variables put over them.
    pub fn from_env() -> Result<Settings, SettingsError> {
        let names = serde_json::to_value(Settings::default()).map_err(SettingsError::Json)?;
        names.as_object().into_iter().flat_map(|m| m.keys()).try_fold(Settings::default(), |settings, name| {
            let variable = format!("MOSAIC_{}", name.to_uppercase());
            let Some(text) = std::env::var_os(&variable) else { return Ok(settings) };
            let text = text.to_string_lossy();
            let value = serde_json::from_str(&text).unwrap_or_else(|_| text.into());
            settings.with(name, value, &variable)
        })
    }

    /// These with one changed; `called`: the user's word for it.
    fn with(&self, name: &str, value: serde_json::Value, called: &str) -> Result<Settings, SettingsError> {
        let mut all = serde_json::to_value(self).map_err(SettingsError::Json)?;
        let before = all.as_object_mut().and_then(|map| map.insert(name.into(), value.clone()));
        let new: Settings = serde_json::from_value(all).map_err(|e| match before {
            Some(before) => SettingsError::Value {
                name: called.into(),
                found: value.to_string(),
                expected: format!("a value like {before} ({e})"),
            },
            None => SettingsError::Json(e),
        })?;
        new.check()?;
        Ok(new)
    }

    fn check(&self) -> Result<(), SettingsError> {
        for (name, found, low, high) in [
            ("in_flight_fraction", self.in_flight_fraction, 0.0, 10.0),
            ("max_wait_ms", self.max_wait_ms, 0.0, 3_600_000.0),
            ("launch_lead_us", self.launch_lead_us, 0.0, 1e6),
            ("settle_us", self.settle_us, 0.0, 1e6),
            ("stall_ms", self.stall_ms, 0.1, 3_600_000.0),
            ("calibration_max_s", self.calibration_max_s, 0.0, 3600.0),
            ("spin_us", self.spin_us, 0.0, 1e6),
        ] {
            if !(low..=high).contains(&found) {
                return Err(SettingsError::Range { name, found, expected: (low, high) });
            }
        }
        Ok(())
    }

    /// The part that policies read.
    pub fn limits(&self) -> Limits {
        Limits {
            in_flight_fraction: self.in_flight_fraction,
            max_wait_ns: (self.max_wait_ms * 1e6) as u64,
            launch_lead_ns: (self.launch_lead_us * 1e3) as u64,
            settle_ns: (self.settle_us * 1e3) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_the_rest() {
        let s = Settings::default().merged(r#"{"max_wait_ms": 5, "policy": "none"}"#).unwrap();
        assert_eq!((s.max_wait_ms, s.policy), (5.0, PolicyName::None));
        assert_eq!(s.spin_us, Settings::default().spin_us);
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        let s = Settings::default();
        for (json, says) in [
            (r#"{"max_wait": 5}"#, "unknown field `max_wait`"),
            (r#"{"policy": "fifo"}"#, r#"policy: found "fifo", expected a value like "idle-only""#),
            (r#"{"in_flight_fraction": -0.5}"#, "found -0.5, expected 0 to 10"),
            (r#"{"spin_us": null}"#, "spin_us: found null, expected a value like 100"),
            ("[1]", "expected a map"),
        ] {
            let e = s.merged(json).unwrap_err().to_string();
            assert!(e.contains(says), "{json}: {e}");
        }
    }
}
