//! What an observation does beside writing the sequence down.

use serde_json::{Map, Value};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

/// The options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Launches to be made inside a profiler's range: a KernelId, and which of its launches, from 0.
    pub profile: HashSet<(u64, u64)>,
    /// Launches are kept.
    pub keep: bool,
}

/// Options were refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum OptionsError {
    /// Not the JSON object that is expected.
    Json(serde_json::Error),
    /// No such option.
    Unknown(String),
    /// A value of no use.
    Value {
        /// The option, and where in it.
        name: String,
        /// What was given.
        found: String,
        /// What would do.
        expected: &'static str,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionsError::Json(e) => write!(f, "options not understood: {e}"),
            OptionsError::Unknown(name) => write!(f, "found option {name:?}, expected profile or keep"),
            OptionsError::Value { name, found, expected } => write!(f, "{name}: found {found}, expected {expected}"),
        }
    }
}

impl std::error::Error for OptionsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OptionsError::Json(e) => Some(e),
            _ => None,
        }
    }
}

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(json: &str) -> Result<Self, OptionsError> {
        let all: Map<String, Value> = serde_json::from_str(json).map_err(OptionsError::Json)?;
        let mut options = Options::default();
        for (name, value) in &all {
            let refused = |name: String, value: &Value, expected| OptionsError::Value {
                name,
                found: value.to_string(),
                expected,
            };
            match name.as_str() {
                "keep" => {
                    options.keep = value.as_bool().ok_or_else(|| refused(name.clone(), value, "true or false"))?;
                }
                "profile" => {
                    let launches = value.as_array().ok_or_else(|| refused(name.clone(), value, "a list"))?;
                    for (i, launch) in launches.iter().enumerate() {
                        let expected = "[KernelId as 16 hexadecimal digits, occurrence from 0]";
                        let chosen = chosen(launch).ok_or_else(|| refused(format!("{name}[{i}]"), launch, expected))?;
                        options.profile.insert(chosen);
                    }
                }
                _ => return Err(OptionsError::Unknown(name.clone())),
            }
        }
        Ok(options)
    }
}

fn chosen(launch: &Value) -> Option<(u64, u64)> {
    let [id, occurrence] = launch.as_array()?.as_slice() else { return None };
    let id = id.as_str().filter(|id| id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some((u64::from_str_radix(id, 16).ok()?, occurrence.as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_options_may_be_left_out() {
        assert_eq!("{}".parse::<Options>().unwrap(), Options::default());
        let given = r#"{"keep": true, "profile": [["00000000000000ff", 2], ["FFFFFFFFFFFFFFFF", 0]]}"#;
        let profile = HashSet::from([(255, 2), (u64::MAX, 0)]);
        assert_eq!(given.parse::<Options>().unwrap(), Options { profile, keep: true });
    }

    /// Fault: an option that is not understood is passed over, or stops the process.
    #[test]
    fn refusals_name_what_was_found_and_expected() {
        let pair = "expected [KernelId as 16 hexadecimal digits, occurrence from 0]";
        for (json, says) in [
            ("", "options not understood: EOF"),
            ("[]", "options not understood: invalid type: sequence"),
            ("{\"keep\"", "options not understood: EOF"),
            (r#"{"kept": true}"#, r#"found option "kept", expected profile or keep"#),
            (r#"{"keep": 1}"#, "keep: found 1, expected true or false"),
            (r#"{"profile": {}}"#, "profile: found {}, expected a list"),
            (r#"{"profile": [["00000000000000ff", 0], 7]}"#, "profile[1]: found 7"),
            (r#"{"profile": [["ff", 0]]}"#, pair),
            (r#"{"profile": [["+0000000000000ff", 0]]}"#, pair),
            (r#"{"profile": [["äääääääää", 0]]}"#, pair),
            (r#"{"profile": [["00000000000000ff", -1]]}"#, pair),
            (r#"{"profile": [["00000000000000ff"]]}"#, pair),
        ] {
            let e = json.parse::<Options>().unwrap_err().to_string();
            assert!(e.contains(says), "{json}: {e}");
        }
        let deep = "[".repeat(100_000);
        assert!(format!("{{\"profile\": {deep}").parse::<Options>().unwrap_err().to_string().contains("recursion"));
    }
}
