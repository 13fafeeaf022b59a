//! `mosaic doctor`: what is in force on this machine, what is wrong, what to do.

use std::{
    ffi::OsString,
    fmt::Write,
    process::{Command, ExitCode},
};

use clap::Args;
use serde_json::{Value, json};

use super::{
    host,
    python::{self, Missing},
};

/// Say what is in force on this machine, what is wrong and what to do.
///
/// Where a Python has mosaic_torch and torch, it is asked; else this program says what it can. The exit code is 0 if
/// nothing is wrong and 1 if something is.
#[derive(Debug, Args)]
pub struct Doctor {
    /// One JSON object.
    #[arg(long)]
    json: bool,
    /// Do not ask Python.
    #[arg(long)]
    no_torch: bool,
    /// Ask this Python.
    #[arg(long, value_name = "FILE", conflicts_with = "no_torch")]
    python: Option<OsString>,
}

impl Doctor {
    pub fn run(self) -> ExitCode {
        let mut problems = Vec::new();
        if !self.no_torch {
            let pythons = self.python.map_or_else(python::candidates, |p| vec![p]);
            match python::with_torch(pythons) {
                Ok(python) => {
                    let mut command = Command::new(python);
                    command.args(["-m", "mosaic_torch", "doctor"]).args(self.json.then_some("--json"));
                    return super::become_command(&mut command);
                }
                Err(missing) => problems.push(no_python(&missing)),
            }
        }
        let report = report(problems);
        let healthy = report["problems"].as_array().is_none_or(Vec::is_empty);
        super::print(&if self.json { format!("{report:#}\n") } else { text(&report) });
        ExitCode::from(u8::from(!healthy))
    }
}

fn no_python(missing: &Missing) -> Value {
    let remedy = match missing {
        Missing::Torch { .. } => "install torch 2.10 or later in the same environment",
        Missing::Package { .. } => {
            "activate the environment, or name its Python with --python; --no-torch if none is meant"
        }
    };
    problem(missing.to_string(), remedy)
}

fn problem(what: String, remedy: &str) -> Value {
    json!({ "what": what, "do": remedy })
}

/// What this program finds out by itself.
fn report(mut problems: Vec<Value>) -> Value {
    let mut launch_path = launch_path();
    if let Some(Value::Array(more)) = launch_path.as_object_mut().and_then(|o| o.remove("problems")) {
        problems.extend(more);
    }
    json!({
        "mosaic": env!("CARGO_PKG_VERSION"),
        "host": serde_json::to_value(host::host()).unwrap_or_default(),
        "launch_path": launch_path,
        "problems": problems,
    })
}

#[cfg(feature = "cuda")]
fn launch_path() -> Value {
    serde_json::to_value(mosaic::hook::doctor::report()).unwrap_or_else(
        |e| json!({ "problems": [problem(format!("the report cannot be written: {e}"), "report this as a bug")] }),
    )
}

#[cfg(not(feature = "cuda"))]
fn launch_path() -> Value {
    let what = "this mosaic was built without CUDA: it cannot look at the launch path".to_owned();
    json!({ "problems": [problem(what, "build it with the feature `cuda` (the default), or install the wheel")] })
}

/// The report to read: one `key: value` a line, problems last.
fn text(report: &Value) -> String {
    let mut out = String::new();
    for (key, value) in report.as_object().into_iter().flatten().filter(|(key, _)| *key != "problems") {
        write_value(&mut out, key, value, 0);
    }
    let problems = report["problems"].as_array().map_or(&[][..], Vec::as_slice);
    if problems.is_empty() {
        out.push_str("\nnothing is wrong\n");
    }
    for p in problems {
        let part = |key: &str| p[key].as_str().map_or_else(|| p[key].to_string(), str::to_owned);
        let _ = write!(out, "\nproblem: {}\n     do: {}\n", part("what"), part("do"));
    }
    out
}

fn write_value(out: &mut String, key: &str, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let key = key.replace('_', " ");
    let _ = match value {
        Value::Object(fields) if !fields.is_empty() => {
            let _ = writeln!(out, "{indent}{key}:");
            for (key, value) in fields {
                write_value(out, key, value, depth + 1);
            }
            Ok(())
        }
        Value::Array(items) if items.iter().any(|i| i.is_object() || i.is_array()) => {
            for (index, item) in items.iter().enumerate() {
                write_value(out, &format!("{key} {index}"), item, depth);
            }
            Ok(())
        }
        Value::Array(items) => {
            let items = items.iter().map(scalar).collect::<Vec<_>>().join(", ");
            writeln!(out, "{indent}{key}: {}", if items.is_empty() { "none" } else { &items })
        }
        other => writeln!(out, "{indent}{key}: {}", scalar(other)),
    };
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "unknown".into(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.into(),
        Value::String(text) => text.clone(),
        Value::Object(_) => "none".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_a_report_is_printed() {
        // Guards against fields of the hook's report that a reader of the text never sees.
        let report = json!({
            "host": { "driver": null, "mps": false },
            "launch_path": {
                "mechanism": { "detour": { "missing": [] } },
                "gpus": [{ "name": "A", "sms": 132, "ledger": [] }, { "name": "B" }],
            },
            "problems": [{ "what": "it is off", "do": "switch it on" }],
        });
        let want = "host:\n  driver: unknown\n  mps: no\nlaunch path:\n  gpus 0:\n    ledger: none\n    name: A\n    sms: 132\n  \
                    gpus 1:\n    name: B\n  mechanism:\n    detour:\n      missing: none\n\nproblem: it is off\n     do: switch it on\n";
        assert_eq!(text(&report), want);
        assert!(text(&json!({ "problems": [] })).ends_with("nothing is wrong\n"));
    }

    #[test]
    fn the_launch_paths_problems_join_the_others() {
        let report = report(vec![problem("first".into(), "x")]);
        assert_eq!(report["problems"][0]["what"], "first");
        assert!(report["launch_path"].get("problems").is_none(), "{report}");
    }
}
