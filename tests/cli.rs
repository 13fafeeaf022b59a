//! The command `mosaic` as a user runs it: output, exit codes, the environment that a program gets.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use mosaic::{
    kernel::{KernelId, LaunchConfig},
    sim::trace::{Kind, Provenance, Trace, TraceKernel},
};
use serde_json::json;

/// A folder of this test alone, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mosaic-cli-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mosaic() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mosaic"));
    for inherited in ["MOSAIC_ROLE", "MOSAIC_SLO", "MOSAIC_NAME", "PYTHONPATH", "LD_PRELOAD", "VIRTUAL_ENV"] {
        command.env_remove(inherited);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(output: Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}

fn fails(output: Output, code: i32, message: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(message), "{stderr}");
}

fn trace(workload: &str, requests: usize, kernels: u64, duration_ns: u64) -> String {
    let text = |s: &str| s.to_owned();
    let kernel = |i| TraceKernel {
        id: KernelId(duration_ns),
        kind: Kind::Kernel,
        start_offset_ns: i * 5_000,
        duration_ns,
        config: LaunchConfig { grid: [1; 3], block: [1; 3], ..Default::default() },
        after_sync: false,
    };
    Trace {
        provenance: Provenance {
            format: text("mosaic-trace"),
            version: 1,
            gpu: text("a made-up GPU"),
            driver: text("0"),
            cuda: text("0"),
            torch: text("0"),
            command: text("a test"),
            date: text("2026-01-01"),
            workload: text(workload),
            kernels: None,
            gpu_gap_ns: 0,
            beside: vec![],
        },
        names: Default::default(),
        requests: vec![(0..kernels).map(kernel).collect(); requests],
    }
    .to_jsonl()
    .unwrap()
}

fn demo(dir: &Dir) -> Command {
    let mut command = mosaic();
    command.arg("demo").arg("--hp").arg(dir.file("hp.jsonl", &trace("a served model", 1, 20, 100_000)));
    command.arg("--be").arg(dir.file("be.jsonl", &trace("a trained model", 1, 50, 60_000)));
    command.args(["--requests", "300"]);
    command
}

#[test]
fn demo_says_that_it_is_a_replay_and_what_it_found() {
    let dir = Dir::new("demo");
    let out = succeeds(demo(&dir).output().unwrap());
    for part in
        ["A replay: no GPU is used", "a made-up GPU", "a served model", "equal processor sharing, an assumption"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let row = |variant| out.lines().find(|l| l.starts_with(variant)).unwrap_or_else(|| panic!("{variant}: {out}"));
    assert!(row("isolated  ").contains("held"), "{out}");
    assert!(row("uncontrolled  ").contains("broken"), "{out}");
    assert!(row("idle-only  ").contains("held"), "{out}");
}

#[test]
fn demo_needs_no_files() {
    let out = succeeds(mosaic().args(["demo", "--requests", "200"]).output().unwrap());
    assert!(out.contains("A replay: no GPU is used") && out.contains("H200"), "{out}");
}

#[test]
fn demo_json_is_the_same_comparison() {
    let dir = Dir::new("demo-json");
    let out = succeeds(demo(&dir).arg("--json").output().unwrap());
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["replay"], true);
    assert_eq!(object["result"]["rows"][2]["variant"], "idle-only");
    assert_eq!(object["result"]["rows"][2]["bound_holds"], true);
}

#[test]
fn demo_refuses_by_name() {
    let dir = Dir::new("demo-refuses");
    fails(demo(&dir).args(["--load", "1.5"]).output().unwrap(), 2, "load is 1.5, expected 0.01 to 0.94");
    let bad = dir.file("bad.jsonl", "{}\n");
    let mut command = mosaic();
    command.arg("demo").arg("--hp").arg(&bad).arg("--be").arg(&bad);
    fails(command.output().unwrap(), 1, "--hp: line 1 of the trace: missing field");
}

#[test]
fn a_trace_is_condensed_to_one_that_reads_back() {
    let dir = Dir::new("trace");
    let (many, one) = (dir.file("many.jsonl", &trace("w", 3, 4, 1_000)), dir.0.join("one.jsonl"));
    let out = succeeds(mosaic().arg("trace").arg(&many).arg("--condense").arg(&one).output().unwrap());
    assert!(out.contains("requests 3, launches 4.0 a request"), "{out}");
    assert!(out.contains("requests 1, launches 4.0 a request"), "{out}");
    assert_eq!(Trace::read(&one).unwrap().requests.len(), 1);
}

#[test]
fn doctor_without_torch_speaks_json_and_exits_by_what_it_finds() {
    let output = mosaic().args(["doctor", "--json", "--no-torch"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!problems.is_empty())), "{report:#}");
    assert!(problems.iter().all(|p| p["what"].is_string() && p["do"].is_string()), "{report:#}");
    assert_eq!(report["host"]["architecture"], std::env::consts::ARCH);
}

#[test]
fn doctor_asks_the_python_that_has_both_packages() {
    // A stand-in interpreter: answers where the packages are, then is asked for the report.
    let dir = Dir::new("doctor");
    let script =
        "#!/bin/sh\n[ \"$1\" = -c ] && { printf '/p/mosaic_torch\\n/p/torch\\n'; exit; }\necho \"asked: $*\"; exit 1\n";
    let python = executable(&dir, "python", script);
    let output = mosaic().args(["doctor", "--json", "--python"]).arg(&python).output().unwrap();
    assert_eq!(text(&output.stdout), "asked: -m mosaic_torch doctor --json\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn doctor_without_a_python_says_so_and_goes_on() {
    let output = mosaic().args(["doctor", "--python", "/nonexistent/python"]).output().unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(
        out.contains("host:") && out.contains("problem: no Python with mosaic_torch (asked /nonexistent/python)"),
        "{out}"
    );
}

/// A profile: its first line and its records.
fn profile(format: &str, records: &[serde_json::Value]) -> String {
    let mut first = json!({
        "format": format, "version": 1, "gpu": "a made-up GPU", "sms": 8, "driver": "1", "cuda": "2", "torch": "3",
        "sm_clock_mhz": [900, 1000], "command": "a test", "date": "2026-01-01", "records": records.len(),
    });
    if format == "mosaic-workload" {
        first["workload"] = "net".into();
    }
    std::iter::once(&first).chain(records).map(|line| format!("{line}\n")).collect()
}

/// A folder of profiles: a seen and an unseen kernel of the zoo, a workload, a pair of every mode and one again, noisy.
fn profiles(dir: &Dir) -> PathBuf {
    let time = |ns: u32| json!({ "median_ns": ns, "p10_ns": ns, "p90_ns": ns, "n": 7 });
    let kernel = |key: &str, family: &str, unseen: bool| {
        json!({
            "key": key, "kernel_id": "00000000000000a7", "symbol": "_Z1f", "grid": [1, 1, 1], "block": [32, 1, 1],
            "dynamic_smem_bytes": 0, "cluster": [0, 0, 0],
            "registers": 24, "static_smem_bytes": 0, "families": [family], "unseen": unseen,
            "isolated": [{ "sms": 8, "median_ns": 1, "p10_ns": 1, "p90_ns": 1, "n": 7 }], "metrics": { "waves": 1.5 },
        })
    };
    let pair = |mode: &str, a_sms: u32, b_sms: u32, a_ns: u32| {
        json!({
            "a": "zoo:x", "b": "net:00000000000000a7.0", "mode": mode, "a_sms": a_sms, "b_sms": b_sms,
            "a_alone_ns": time(1000), "b_alone_ns": time(2000), "a_ns": time(a_ns), "b_ns": time(5000),
            "lead_ns": 0, "overlap_ns": 1000, "noisy": false,
        })
    };
    let mut noisy = pair("separate", 4, 4, 1000);
    noisy["b_ns"]["p90_ns"] = 9000.into();
    noisy["noisy"] = true.into();
    let pairs = [
        pair("full-equal", 8, 8, 1500),
        pair("full-hp-running", 8, 8, 1100),
        pair("full-hp-arriving", 8, 8, 1000),
        pair("separate", 6, 2, 1000),
        pair("confined", 8, 2, 1200),
        noisy,
    ];
    let launch = json!({ "kernel": 0, "start_offset_ns": 0, "durations": [[8, 1.5e6, 1e6, 2e6], [4, 3e6, 3e6, 3e6]] });
    let launched_otherwise = json!({ "kernel": 0, "start_offset_ns": 9, "durations": [[8, 1e6, 1e6, 1e6]] });
    let zoo = [kernel("zoo:x", "fill", false), kernel("zoo:y", "mul", true)];
    let workload = [kernel("net:00000000000000a7.0", "net", false), launch, launched_otherwise];
    dir.file("h/kernels.jsonl", &profile("mosaic-kernels", &zoo));
    dir.file("h/pairs-all.jsonl", &profile("mosaic-pairs", &pairs));
    dir.file("h/physics.jsonl", &profile("mosaic-physics", &[json!({ "experiment": "waves" })]));
    dir.file("h/workloads/net.jsonl", &profile("mosaic-workload", &workload));
    dir.0.join("h")
}

/// Fault: a summary that leaves records out or counts them under another name.
#[test]
fn profile_shows_what_files_hold() {
    let dir = Dir::new("profile-show");
    let folder = profiles(&dir);
    let show = |file: &str| succeeds(mosaic().args(["profile", "--show"]).arg(folder.join(file)).output().unwrap());
    let holds = |out: &str, parts: &[&str]| {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(out.lines().any(|line| words(line) == *part), "{part}: {out}");
        }
    };
    let kernels = [
        "mosaic-kernels version 1, 2 records",
        "a made-up GPU, 8 SMs, driver 1, CUDA 2, torch 3",
        "SM clock 900 to 1000 MHz",
        "2026-01-01, source unknown: a test",
        "kernels 2: 1 seen, 1 unseen",
        "fill 1 seen 0 unseen",
        "mul 0 seen 1 unseen",
        "missing in 2: gpu__time_duration.sum",
    ];
    let pairs = [
        "mosaic-pairs version 1, 6 records",
        "pairs 6: 1 noisy",
        "full-equal 8 8 1 0 1.50 1.50 1.50 2.50 2.50 2.50",
        "full-hp-running 8 8 1 0 1.10 1.10 1.10 2.50 2.50 2.50",
        "separate 4 4 1 1 1.00 1.00 1.00 2.50 2.50 2.50",
        "separate 6 2 1 0 1.00 1.00 1.00 2.50 2.50 2.50",
        "confined 8 2 1 0 1.20 1.20 1.20 2.50 2.50 2.50",
    ];
    let workload = [
        "mosaic-workload version 1, 3 records",
        "workload net: 2 launches of 1 unique kernels",
        "on 8 SMs 2.500 ms in 2 launches",
        "on 4 SMs 3.000 ms in 1 launches",
    ];
    let counts = [
        "zoo_kernels 2",
        "workload_kernels 1",
        "pairs_full_equal 1",
        "pairs_full_hp_high_running 1",
        "pairs_full_hp_high_arriving 1",
        "pairs_separate 2",
        "pairs_confined 1",
    ];
    holds(&show("kernels.jsonl"), &kernels);
    holds(&show("pairs-all.jsonl"), &pairs);
    holds(&show("workloads/net.jsonl"), &workload);
    holds(&show("physics.jsonl"), &["mosaic-physics version 1, 1 records"]);
    holds(&show(""), &[&kernels[..], &pairs, &workload, &counts].concat());
}

/// Fault: a damaged profile is summed up, or refused without file and line.
#[test]
fn profile_refuses_by_line() {
    let dir = Dir::new("profile-refuses");
    let folder = profiles(&dir);
    let file = folder.join("pairs-all.jsonl");
    let damaged = std::fs::read_to_string(&file).unwrap().replacen("zoo:x", "zoo:z", 1);
    dir.file("h/pairs-all.jsonl", &damaged);
    let says = format!("mosaic: {}: line 2: a is \"zoo:z\"", file.display());
    fails(mosaic().args(["profile", "--show"]).arg(&folder).output().unwrap(), 1, &says);
    fails(mosaic().args(["profile", "--show", "/nonexistent"]).output().unwrap(), 1, "/nonexistent: cannot be read");
}

/// Fault: options of the script's or of Python's command that this one takes for its own or drops.
#[test]
fn profile_passes_all_else_to_python() {
    let dir = Dir::new("profile-python");
    let script =
        "#!/bin/sh\n[ \"$1\" = -c ] && { printf '/p/mosaic_torch\\n/p/torch\\n'; exit; }\necho \"$*\"; exit 3\n";
    executable(&dir, "bin/python", script);
    let asked = |arguments: &[&str]| {
        let output = mosaic().env("VIRTUAL_ENV", &dir.0).arg("profile").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    for arguments in [
        &["--out", "x", "serve.py", "--show", "-v", "--", "-h", "--help"][..],
        &["serve.py", "--out=x", "--version"],
        &["--no-counters", "serve.py"],
        &[],
    ] {
        let want = [&["-m", "mosaic_torch", "profile"], arguments].concat().join(" ") + "\n";
        assert_eq!(asked(arguments), want);
    }
    let nowhere = mosaic().env("PATH", &dir.0).args(["profile", "serve.py"]).output().unwrap();
    fails(nowhere, 1, "no Python with mosaic_torch (asked python, python3): activate the environment");
}

/// Made by another process: a program that this one has open for writing could not be run (ETXTBSY).
fn executable(dir: &Dir, name: &str, text: &str) -> PathBuf {
    let (source, made) = (dir.file(&format!("{name}.txt"), text), dir.0.join(name));
    succeeds(Command::new("install").args(["-m", "755"]).args([&source, &made]).output().unwrap());
    made
}

/// A folder as the package's: the startup folder, and no engine library (the loader would complain of a made-up one).
fn package(dir: &Dir) -> PathBuf {
    dir.file("mosaic_torch/_startup/sitecustomize.py", "");
    dir.0.join("mosaic_torch")
}

fn run(dir: &Dir, options: &[&str], program: &[&str]) -> Command {
    let mut command = mosaic();
    command.arg("run").args(options).arg("--package").arg(package(dir)).arg("--").args(program);
    command
}

#[test]
fn run_gives_the_program_its_role_and_nothing_of_another() {
    // Guards against a bound or a name inherited from an outer `mosaic run`.
    let dir = Dir::new("run");
    let mut command = run(&dir, &["--role", "be"], &["env"]);
    command.env("MOSAIC_SLO", "1.5").env("MOSAIC_NAME", "outer").env("PYTHONPATH", "/of/the/user");
    let out = succeeds(command.output().unwrap());
    let startup = format!("PYTHONPATH={}:/of/the/user", package(&dir).join("_startup").display());
    assert!(out.lines().any(|l| l == "MOSAIC_ROLE=be") && out.lines().any(|l| l == startup), "{out}");
    assert!(!out.contains("MOSAIC_SLO") && !out.contains("MOSAIC_NAME"), "{out}");

    let out = succeeds(run(&dir, &["--role", "hp", "--slo", "1.25", "--name", "chat"], &["env"]).output().unwrap());
    for line in ["MOSAIC_ROLE=hp", "MOSAIC_SLO=1.25", "MOSAIC_NAME=chat"] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
}

#[test]
fn run_preloads_the_engine_library_before_the_users_own() {
    // A library that is mapped here stands in: the loader takes it, and it does nothing.
    let dir = Dir::new("run-engine");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.lines().find_map(|l| l.split_whitespace().nth(5).filter(|p| p.contains("libgcc_s"))).unwrap();
    let engine = package(&dir).join("libmosaic_engine.so");
    std::fs::copy(library, &engine).unwrap();
    let mut command = run(&dir, &["--role", "hp"], &["env"]);
    let out = succeeds(command.env("LD_PRELOAD", library).output().unwrap());
    let want = format!("LD_PRELOAD={}:{library}", engine.display());
    assert!(out.lines().any(|l| l == want), "{want}: {out}");
}

#[test]
fn run_ends_as_the_program_does() {
    let dir = Dir::new("run-codes");
    let code = |program: &[&str]| run(&dir, &["--role", "be"], program).output().unwrap();
    assert_eq!(code(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    fails(code(&["/nonexistent/program"]), 127, "cannot run /nonexistent/program");
    let plain = dir.file("plain.txt", "no program");
    fails(code(&[plain.to_str().unwrap()]), 126, "cannot run");
}

#[test]
fn run_refuses_what_would_not_apply() {
    // Guards against a program that runs without its role: worse than one that does not start.
    let dir = Dir::new("run-refuses");
    fails(run(&dir, &["--role", "be", "--slo", "1.2"], &["env"]).output().unwrap(), 125, "--slo is HP's bound");
    fails(run(&dir, &["--role", "be"], &["python3", "-I", "x.py"]).output().unwrap(), 125, "python -I does not read");
    fails(run(&dir, &["--role", "be", "--name", " "], &["env"]).output().unwrap(), 125, "the name is blank");
    let mut empty = mosaic();
    empty.args(["run", "--role", "be", "--package"]).arg(&dir.0).args(["--", "env"]);
    fails(empty.output().unwrap(), 125, "holds neither _startup nor libmosaic_engine.so");
    fails(mosaic().args(["run", "--role", "mid", "--", "env"]).output().unwrap(), 2, "invalid value 'mid'");
}
