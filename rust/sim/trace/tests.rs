use super::*;
use crate::sim::{
    Rng,
    testing::{provenance, random_trace, trace},
};

fn head() -> String {
    serde_json::to_string(&provenance("a model")).unwrap()
}

const KERNEL: &str = r#"{"kernel_id":"00000000000000ff","name":"k","start_offset_ns":5,"duration_ns":7,"grid":[1,1,1],"block":[32,1,1]}"#;

fn file(lines: &[&str]) -> Vec<u8> {
    lines.join("\n").into_bytes()
}

#[test]
fn a_trace_survives_writing_and_reading() {
    for seed in 0..50 {
        let trace = random_trace("w", &mut Rng::new(seed));
        assert_eq!(Trace::parse(trace.to_jsonl().unwrap().as_bytes()).unwrap(), trace, "seed {seed}");
    }
}

#[test]
fn optional_keys_have_their_defaults() {
    let copy = r#"{"kernel_id":"0000000000000001","kind":"copy","start_offset_ns":9,"duration_ns":1}"#;
    let trace = Trace::parse(&file(&[&head(), KERNEL, copy, ""])).unwrap();
    let [k, c] = trace.requests[0][..] else { panic!("{trace:?}") };
    assert_eq!((k.id, k.kind, k.after_sync, k.config.dynamic_smem_bytes), (KernelId(255), Kind::Kernel, false, 0));
    assert_eq!((c.kind, c.config), (Kind::Copy, LaunchConfig::default()));
}

#[test]
fn malformed_input_is_refused_by_name() {
    let head = head();
    let with = |from: &str, to: &str| {
        let changed = KERNEL.replace(from, to);
        assert_ne!(changed, KERNEL, "the case changes nothing: {from}");
        file(&[&head, &changed])
    };
    let first = |from: &str, to: &str| {
        let changed = head.replace(from, to);
        assert_ne!(changed, head, "the case changes nothing: {from}");
        file(&[&changed, KERNEL])
    };
    let earlier = KERNEL.replace(":5", ":4");
    let renamed = KERNEL.replace("\"k\"", "\"other\"");
    let later = KERNEL.replace("\"k\",", "\"k\",\"request\":2,");
    let one = KERNEL.replace("\"k\",", "\"k\",\"request\":1,");
    let beside =
        r#""beside":[{"hp_workload":"h","hp_slowdown_ratio":0.5,"be_slowdown_ratio":1,"source":"s"}],"workload""#;
    let cases: [(&str, Vec<u8>, &str); 29] = [
        ("empty", vec![], "trace is empty"),
        ("blank first line", file(&["", KERNEL]), "trace is empty"),
        ("no kernels", file(&[&head]), "trace has no kernels"),
        ("not JSON", file(&["hello", KERNEL]), "line 1 of the trace"),
        ("not UTF-8", [head.as_bytes(), b"\n\xff\xfe"].concat(), "line 2 of the trace"),
        ("cut in a line", file(&[&head, &KERNEL[..40]]), "line 2 of the trace: EOF"),
        ("blank line between", file(&[&head, "", KERNEL]), "line 2 of the trace: EOF"),
        ("another format", first("mosaic-trace", "chrome"), "not a kernel trace: format is \"chrome\""),
        ("another version", first("\"version\":1", "\"version\":2"), "trace is of version 2"),
        ("no GPU named", first("\"gpu\":\"made up\"", "\"gpu\":\" \""), "gpu is blank"),
        ("no workload named", first("a model", ""), "workload is blank"),
        ("no driver key", first("\"driver\":\"none\",", ""), "line 1 of the trace: missing field `driver`"),
        ("huge gap", first("\"gpu_gap_ns\":0", "\"gpu_gap_ns\":1000001"), "line 1 of the trace: gpu_gap_ns is 1000001"),
        ("slowdown below one", first("\"workload\"", beside), "line 1 of the trace: hp_slowdown_ratio is 0.5"),
        ("fewer kernels than promised", first("\"version\":1", "\"version\":1,\"kernels\":2"), "trace has 1 kernels"),
        ("numeric id", with("\"00000000000000ff\"", "255"), "line 2 of the trace: invalid type"),
        ("short id", with("00000000000000ff", "ff"), "line 2 of the trace: kernel_id is ff"),
        ("signed id", with("00000000000000ff", "+0000000000000ff"), "line 2 of the trace: kernel_id is +"),
        ("zero duration", with(":7", ":0"), "line 2 of the trace: duration_ns is 0"),
        ("negative duration", with(":7", ":-7"), "line 2 of the trace: invalid value"),
        ("endless duration", with(":7", ":18446744073709551615"), "line 2 of the trace: the request takes more"),
        ("late start", with(":5", ":60000000000"), "line 2 of the trace: the request takes more"),
        ("misspelt key", with("\"grid\"", "\"gird\""), "line 2 of the trace: unknown field `gird`"),
        ("empty grid", with("[1,1,1]", "[1,0,1]"), "line 2 of the trace: grid is [1, 0, 1]"),
        ("no block", with(",\"block\":[32,1,1]", ""), "line 2 of the trace: block is [0, 0, 0]"),
        ("unknown kind", with("\"k\",", "\"k\",\"kind\":\"graph\","), "line 2 of the trace: unknown variant"),
        ("back in time", file(&[&head, KERNEL, &earlier]), "line 3 of the trace: launched at 4 ns"),
        ("two names", file(&[&head, KERNEL, &renamed]), "line 3 of the trace: kernel_id is named \"other\""),
        ("a request left out", file(&[&head, KERNEL, &later]), "line 3 of the trace: request is 2, expected 0"),
    ];
    for (case, bytes, text) in cases {
        let error = Trace::parse(&bytes).expect_err(case).to_string();
        assert!(error.starts_with(text), "{case}: {error}");
    }
    let back = file(&[&head, KERNEL, &one, KERNEL]);
    assert!(Trace::parse(&back).unwrap_err().to_string().starts_with("line 4 of the trace: request is 0, expected 1"));
}

#[test]
fn condensing_takes_each_launch_alone_and_refuses_different_requests() {
    // Guards against launch latency that stays in durations, and against kernels of different requests mixed up.
    let requests: [&[(u64, u64, bool)]; 3] =
        [&[(0, 9, true), (50, 5, false)], &[(2, 9, true), (40, 5, false)], &[(4, 9, false), (45, 5, true)]];
    let mut recorded = trace("w", &requests);
    recorded.requests[1][0].duration_ns = 7;
    recorded.requests[2][1].duration_ns = 3;
    let condensed = recorded.condense().unwrap();
    let launches: Vec<_> =
        condensed.kernels().map(|k| (k.id.0, k.start_offset_ns, k.duration_ns, k.after_sync)).collect();
    assert_eq!(launches, [(9, 2, 7, true), (5, 45, 3, false)]);
    assert_eq!(Trace::parse(condensed.to_jsonl().unwrap().as_bytes()).unwrap(), condensed);

    let other: [&[(u64, u64, bool)]; 2] = [&[(0, 9, true), (50, 5, false)], &[(0, 9, true), (50, 6, false)]];
    assert_eq!(trace("w", &other).condense(), Err(CondenseError::Differs { request: 1, launch: 1 }));
    let longer: [&[(u64, u64, bool)]; 2] = [&[(0, 9, true)], &[(0, 9, true), (50, 5, false)]];
    assert_eq!(trace("w", &longer).condense(), Err(CondenseError::Differs { request: 1, launch: 1 }));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Trace::read(Path::new("/nonexistent/x.jsonl")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read trace /nonexistent/x.jsonl: "), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn an_oversized_file_is_refused_before_it_is_parsed() {
    let error = Trace::read(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(error, TraceError::TooLarge { .. }), "{error}");
}

#[test]
fn mutated_bytes_never_panic_and_what_is_accepted_is_whole() {
    // Guards against an index, a sum or an unwrap on hostile bytes, here and in the replay of what was accepted.
    let mut rng = Rng::new(42);
    let bases: Vec<Vec<u8>> =
        (0..8).map(|s| random_trace("w", &mut Rng::new(s)).to_jsonl().unwrap().into_bytes()).collect();
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = bases[(rng.next_u64() % 8) as usize].clone();
        for _ in 0..1 + rng.next_u64() % 3 {
            let at = (rng.next_u64() % bytes.len() as u64) as usize;
            match rng.next_u64() % 5 {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => bytes[at] = b'0' + (rng.next_u64() % 10) as u8,
                2 => bytes.insert(at, b'9'),
                3 => bytes.truncate(at.max(1)),
                _ => {
                    bytes.remove(at);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        if let Ok(trace) = Trace::parse(&bytes) {
            accepted += 1;
            assert_eq!(Trace::parse(trace.to_jsonl().unwrap().as_bytes()).unwrap(), trace);
            let job = crate::sim::Job::new(&trace, &crate::sim::Model::default());
            assert!(job.service_ns().iter().all(|ns| *ns > 0));
        }
    }
    assert!((1_000..19_000).contains(&accepted), "the mutations are too weak or too strong: {accepted} accepted");
}
