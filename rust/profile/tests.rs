//! The readers of the formats: what they give back, and what they refuse.

use super::testing::{self, *};
use super::*;
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::io::Write;

fn records(file: &ProfileFile) -> Vec<Value> {
    fn values<T: serde::Serialize>(list: &[T]) -> Vec<Value> {
        list.iter().map(|r| serde_json::to_value(r).unwrap()).collect()
    }
    match file {
        ProfileFile::Kernels(f) => values(&f.kernels),
        ProfileFile::Pairs(f) => values(&f.pairs),
        ProfileFile::Physics(f) => values(&f.points),
        ProfileFile::Workload(f) => [values(&f.kernels), values(&f.launches)].concat(),
    }
}

/// Fault: a field that is written under another name than it is read, or that is lost.
#[test]
fn what_is_written_is_read_back() {
    for text in [kernels(), pairs(), workload(), physics()] {
        let file = ProfileFile::parse(text.as_bytes()).unwrap();
        let first = serde_json::to_value(file.provenance()).unwrap();
        let written: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(written, [vec![first], records(&file)].concat());
    }
    let kernels = KernelProfiles::parse(kernels().as_bytes()).unwrap();
    assert_eq!(kernels.kernels, [zoo("fill n=1"), zoo("fill n=2"), launched(9)]);
    let w = WorkloadProfile::parse(workload().trim_end().as_bytes()).unwrap();
    assert_eq!((w.name(), w.kernels.len(), w.launches.len()), ("net", 2, 3), "without the last line end");
}

/// Fault: names of modes, ids and lists that serialise well and are not those of profiles/README.md.
#[test]
fn lines_as_the_readme_writes_them_are_read() {
    let time = r#"{"median_ns":1000,"p10_ns":990,"p90_ns":1000.5,"n":30}"#;
    for mode in PairMode::ALL {
        let (a_sms, b_sms) = match mode.name() {
            "separate" => (6, 2),
            "confined" => (8, 2),
            _ => (8, 8),
        };
        let line = format!(
            r#"{{"a":"zoo:x","b":"zoo:x","mode":"{}","a_sms":{a_sms},"b_sms":{b_sms},"a_alone_ns":{time},"b_alone_ns":{time},
            "a_ns":{time},"b_ns":{time},"lead_ns":0,"overlap_ns":0,"noisy":false}}"#,
            mode.name()
        )
        .replace('\n', "");
        let text = testing::file(Format::Pairs, &[serde_json::from_str::<Value>(&line).unwrap()]);
        assert_eq!(PairProfiles::parse(text.as_bytes()).unwrap().pairs[0].mode, mode);
    }
    let kernel = r#"{"key":"net:00000000000000ff.12","kernel_id":"00000000000000ff","symbol":"_Z1f","grid":[1,2,3],
        "block":[32,1,1],"dynamic_smem_bytes":0,"cluster":[2,1,1],"registers":24,
        "static_smem_bytes":0,"families":["net"],"unseen":true,
        "isolated":[{"sms":8,"median_ns":1000,"p10_ns":990,"p90_ns":1000.5,"n":30}],
        "grid_working_set_bytes":4096,"working_set_from":"dram-reads"}"#;
    let launch = r#"{"kernel":0,"start_offset_ns":0,"durations":[[8,1000,990,1000.5]]}"#;
    let values: Vec<Value> = [kernel, launch].map(|line| serde_json::from_str(line).unwrap()).into();
    let read = WorkloadProfile::parse(testing::file(Format::Workload, &values).as_bytes()).unwrap();
    let k = &read.kernels[0];
    assert_eq!((k.config().cluster, k.isolated[0].time.n, k.unseen), ([2, 1, 1], 30, true));
    assert_eq!(k.working_set_from, Some(WorkingSetFrom::DramReads));
    let time = LaunchTime { sms: 8, median_ns: 1000.0, p10_ns: 990.0, p90_ns: 1000.5 };
    assert_eq!(read.launches[0].durations, [time]);
}

/// Fault: a file that is damaged, cut off, of another build, or breaks a rule of the README passes for a profile.
#[test]
fn refusals_say_what_was_found_and_what_was_expected() {
    let (k, p, w, x) = (&*kernels(), &*pairs(), &*workload(), &*physics());
    let line = |text: &str, n: usize| text.lines().nth(n - 1).unwrap().to_owned() + "\n";
    let second_line = &*line(k, 2);
    let cases = [
        // (file, what is replaced, with what, what the refusal says)
        ("", "", "", "no first line"),
        (
            k,
            "mosaic-kernels",
            "mosaic-trace",
            "found the format \"mosaic-trace\", expected mosaic-kernels or mosaic-pairs or mosaic-workload or mosaic-physics",
        ),
        (k, "\"version\":1", "\"version\":2", "found version 2, expected version 1"),
        (k, "\"version\":1", "\"version\":2,\"new\":0", "found version 2, expected version 1"),
        (k, "\"date\"", "\"dated\"", "line 1: unknown field `dated`"),
        (k, "\"date\":\"2026-01-01\",", "", "line 1: missing field `date`"),
        (k, "\"2026-01-01\"", "\" \"", "line 1: date is \" \", expected a text that is not blank"),
        (k, "\"sms\":8,\"driver\"", "\"sms\":0,\"driver\"", "line 1: sms is 0, expected 1 to 1024"),
        (k, "[900,1000]", "[1000,900]", "line 1: sm_clock_mhz is [1000, 900], expected the lowest clock"),
        (
            k,
            "\"source\"",
            "\"workload\":\"net\",\"source\"",
            "line 1: workload is given, expected none in mosaic-kernels",
        ),
        (w, ",\"workload\":\"net\"", "", "line 1: workload is missing, expected the model's name"),
        (k, "\"records\":3", "\"records\":2", "found 3 records, expected 2 by the first line"),
        (k, "\"records\":3", "\"records\":4", "found 3 records, expected 4 by the first line"),
        (k, second_line, "\n", "line 2: EOF while parsing"),
        (k, "fill n=2", "fill n=1", "line 3: found the key \"zoo:fill n=1\" again, expected it once (first: line 2)"),
        (k, "\"unseen\":false", "\"seen\":true", "line 2: unknown field `seen`"),
        (k, "\"unseen\":false", "\"unseen\":true", "line 3: unseen is false, expected true as in the lines above"),
        (k, "0000000000000007", "000000000000007", "line 2: kernel_id is \"000000000000007\", expected 16 hexadecimal"),
        (
            k,
            "0000000000000009\",",
            "000000000000000A\",",
            "line 4: kernel_id is \"000000000000000A\", expected 16 hexadecimal",
        ),
        (
            k,
            "net:0000000000000009.0",
            "net:0000000000000008.0",
            "expected zoo:CONFIGURATION, or WORKLOAD:0000000000000009",
        ),
        (k, "net:0000000000000009.0", "net:0000000000000009.", "line 4: key is \"net:0000000000000009.\""),
        (k, "zoo:fill n=1", "zoo: ", "line 2: key is \"zoo: \""),
        (k, "[132,1,1]", "[132,0,1]", "line 2: grid is [132, 0, 1], expected three integers of at least 1"),
        (k, "[132,1,1]", "[132,1]", "line 2: invalid length 2"),
        (k, "[256,1,1]", "[0,1,1]", "line 2: block is [0, 1, 1]"),
        (
            k,
            "[0,0,0]",
            "[2,0,0]",
            "line 2: cluster is [2, 0, 0], expected three integers of at least 1, or three zeros",
        ),
        (
            k,
            "[\"fill\"]",
            "[\"fill\",\"mul\"]",
            "line 2: families is [\"fill\", \"mul\"], expected one family in lower",
        ),
        (k, "[\"fill\"]", "[\"Fill\"]", "line 2: families is [\"Fill\"]"),
        (k, "[\"net\",\"other net\"]", "[]", "line 4: families is [], expected at least one workload"),
        (k, "\"sms\":2", "\"sms\":9", "line 2: sms of isolated is 9, expected 1 to 8"),
        (k, "\"sms\":2", "\"sms\":8", "line 2: sms of isolated is 8 twice, expected each once"),
        (k, "\"n\":20", "\"n\":0", "line 2: n of isolated is 0, expected at least 1"),
        (k, "\"n\":20", "\"n\":2.5", "line 2: invalid type: floating point"),
        (
            k,
            "\"p10_ns\":990.0",
            "\"p10_ns\":1001",
            "line 2: isolated is p10 1001, median 1000, p90 1020, expected finite",
        ),
        (k, "\"p10_ns\":990.0", "\"p10_ns\":0", "line 2: isolated is p10 0, median 1000"),
        (k, "\"p90_ns\":1020.0", "\"p90_ns\":1e999", "line 2: number out of range"),
        (k, "\"p90_ns\":1020.0", "\"p90_ns\":NaN", "line 2: expected value"),
        (k, "\"waves\":1.5", "\"waves\":-1", "line 2: waves of metrics is -1, expected a finite number, 0 or above"),
        (k, "\"waves\":1.5", "\"wave\":1", "line 2: unknown field `wave`"),
        (
            k,
            "\"grid_working_set_bytes\":4096.0",
            "\"grid_working_set_bytes\":-1",
            "line 2: grid_working_set_bytes is -1",
        ),
        (
            k,
            "\"grid_working_set_bytes\":4096.0",
            "\"grid_working_set_bytes\":31",
            "is 32, expected at most the grid's 31",
        ),
        (k, ",\"working_set_from\":\"arguments\"", "", "line 2: working_set_from is missing"),
        (k, "\"arguments\"", "\"guesses\"", "line 2: unknown variant `guesses`, expected `arguments` or `dram-reads`"),
        (k, "\"source\":\"abc\"", "\"source\":\"\"", "line 1: source is \"\", expected a text that is not blank"),
        (x, "{\"experiment\"", "[{\"experiment\"", "line 2: "),
        (x, "\"records\":2", "\"records\":1", "found 2 records, expected 1"),
        (p, "full-equal", "full_equal", "line 2: unknown variant `full_equal`, expected one of `full-equal`"),
        (p, "full-hp-running", "full-equal", "line 3: found zoo:fill n=1 on 8 SMs beside net:0000000000000009.0 on 8"),
        (p, "\"a_sms\":8", "\"a_sms\":7", "line 2: a_sms and b_sms is 7 and 8, expected 8 and 8 in full-equal"),
        (p, "\"a_sms\":6", "\"a_sms\":7", "line 5: a_sms and b_sms is 7 and 2, expected at least 1 each, 8 together"),
        (p, "\"confined\",\"a_sms\":8,\"b_sms\":2", "\"confined\",\"a_sms\":8,\"b_sms\":8", "line 6: a_sms and b_sms"),
        (p, "\"median_ns\":6000.0", "\"median_ns\":0.0", "line 2: b_ns is p10 5990, median 0, p90 6020"),
        (p, "\"overlap_ns\":1400.0", "\"overlap_ns\":1521", "line 2: overlap_ns is 1521, expected 0 to 1520"),
        (p, "\"overlap_ns\":1400.0", "\"overlap_ns\":-1", "line 2: overlap_ns is -1"),
        (p, "\"noisy\":false", "\"noisy\":true", "line 2: noisy is true, expected false by the four durations"),
        (p, "\"p90_ns\":6020.0", "\"p90_ns\":7991", "line 2: noisy is false, expected true by the four durations"),
        (p, "\"lead_ns\":-100.0,", "", "line 2: missing field `lead_ns`"),
        (w, "\"kernel\":1", "\"kernel\":2", "line 4: kernel is 2, expected an index below 2"),
        (w, "\"kernel\":1", "\"kernel\":-1", "line 4: invalid value: integer `-1`"),
        (w, "\"start_offset_ns\":0.0", "\"start_offset_ns\":-1", "line 4: start_offset_ns is -1"),
        (w, "[8,1000.0", "[7,1000.0", "line 4: sms of durations is [7, 4], expected the whole GPU's 8 too"),
        (w, "[8,1000.0", "[4,1000.0", "line 4: sms of durations is 4 twice"),
        (w, "[8,1000.0,", "[8,", "line 4: invalid length 3"),
        (w, "[8,1000.0,990.0", "[8,1000.0,0", "line 4: durations is p10 0, median 1000"),
    ];
    for (text, from, to, says) in cases {
        assert!(text.contains(from), "{from}: not in {text}");
        let text = text.replacen(from, to, 1);
        let error = ProfileFile::parse(text.as_bytes()).map(|f| f.summary()).unwrap_err().to_string();
        assert!(error.contains(says), "{from} -> {to}: expected {says}, found {error}");
    }

    let alone = KernelProfile { isolated: vec![], ..zoo("fill n=1") };
    let error = KernelProfiles::parse(testing::file(Format::Kernels, &[alone]).as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "line 2: isolated is [], expected a time alone on at least one number of SMs");
    let swapped = line(w, 1) + &line(w, 2) + &line(w, 4).replace(":1,", ":0,") + &line(w, 3) + &line(w, 5);
    let error = WorkloadProfile::parse(swapped.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "line 4: kernel is missing, expected a launch: kernels stand above all launches");
    let error = PairProfiles::parse(k.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "found the format \"mosaic-kernels\", expected mosaic-pairs");
    let error = ProfileFile::parse(vec![b' '; 2 << 20].as_slice()).unwrap_err().to_string();
    assert!(error.starts_with("line 1: found more than 1048576 bytes"), "{error}");
}

/// Fault: a short kernel is noisy by its share alone, or a long one by its width alone.
#[test]
fn noise_is_both_wide_and_a_large_share() {
    let noisy = |median_ns: f64, width_ns: f64| {
        Spread { median_ns, p10_ns: median_ns, p90_ns: median_ns + width_ns, n: 1 }.is_noisy()
    };
    assert!(noisy(20_000.0, 2_001.0));
    assert!(!noisy(20_000.0, 2_000.0) && !noisy(30_000.0, 3_000.0) && !noisy(1_000.0, 1_000.0));
}

/// Fault: some bytes give a panic, or a number that is not finite; or the readers refuse whatever is not untouched.
#[test]
fn damaged_profiles_are_read_or_refused() {
    let mut x = 5u64;
    let mut next = |n: usize| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) as usize % n
    };
    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(items) => items.iter().any(has_null),
            Value::Object(fields) => fields.values().any(has_null),
            _ => false,
        }
    }
    for text in [kernels(), pairs(), workload()] {
        let mut read_well = 0;
        for _ in 0..20_000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..1 + next(4) {
                let at = next(bytes.len());
                match next(8) {
                    0..=2 => bytes[at] = b"\",\n[]{}0.e9-:"[next(13)],
                    3 if bytes.len() > 1 => drop(bytes.remove(at)),
                    4 => bytes.insert(at, next(256) as u8),
                    5 => bytes.truncate(at.max(1)),
                    // A digit for a digit: the text stays JSON, and its rules are what is left to refuse it.
                    _ => {
                        if let Some(digit) = bytes[at..].iter_mut().find(|b| b.is_ascii_digit()) {
                            *digit = b'0' + next(10) as u8;
                        }
                    }
                }
            }
            if let Ok(file) = ProfileFile::parse(bytes.as_slice()) {
                read_well += 1;
                assert_eq!(file.provenance().records as usize, records(&file).len());
                // serde_json writes a number that is not finite as null; what was not measured it leaves out.
                assert!(!records(&file).iter().any(has_null), "{}", String::from_utf8_lossy(&bytes));
            }
        }
        assert!(read_well > 100, "the damage is always fatal: {read_well}");
    }
}

/// Names and texts.
type Files<'a> = &'a [(&'a str, &'a str)];

/// A folder of this test alone, removed at its end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(test: &str, files: Files) -> Self {
        let folder = Folder(std::env::temp_dir().join(format!("mosaic-profile-{test}-{}", std::process::id())));
        std::fs::create_dir_all(folder.0.join("workloads")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.0.join(name), text).unwrap();
        }
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Fault: pairs or workloads of a folder that are left out, counted under another mode, or taken from its traces.
#[test]
fn a_folder_is_one_data_set() {
    let second = testing::file(Format::Pairs, &[pair("zoo:fill n=2", "net:000000000000000a.0", PairMode::Confined)]);
    let files = [
        ("kernels.jsonl", &*kernels()),
        ("pairs-full.jsonl", &pairs()),
        ("pairs-split.jsonl", &second),
        ("README.md", "no profile"),
    ];
    let folder = Folder::new("whole", &files);
    let compressed = folder.0.join("workloads/net.jsonl.gz");
    let mut gz = GzEncoder::new(std::fs::File::create(&compressed).unwrap(), Compression::default());
    gz.write_all(workload().as_bytes()).and_then(|()| gz.finish()).unwrap();
    let set = DataSet::open(&folder.0).unwrap();
    assert_eq!((set.pairs.len(), set.workloads.len()), (2, 1));
    let want = Counts {
        zoo_kernels: 2,
        // The one of kernels.jsonl is one of the workload's two.
        workload_kernels: 2,
        pairs_full_equal: 1,
        pairs_full_hp_high_running: 1,
        pairs_full_hp_high_arriving: 1,
        pairs_separate: 1,
        pairs_confined: 2,
    };
    assert_eq!(set.counts(), want);
    std::fs::write(&compressed, "not compressed").unwrap();
    let error = DataSet::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("net.jsonl.gz: cannot be read"), "{error}");
    std::fs::remove_dir_all(folder.0.join("workloads")).unwrap();
    let error = DataSet::open(&folder.0).unwrap_err().to_string();
    assert!(error.contains("b is \"net:000000000000000a.0\", expected a key of kernels.jsonl"), "{error}");
    std::fs::remove_file(folder.0.join("pairs-split.jsonl")).unwrap();
    assert_eq!(DataSet::open(&folder.0).unwrap().workloads, []);
}

/// Fault: files of two GPUs, pairs of unknown kernels, or one measurement twice, in one data set.
#[test]
fn a_folder_that_does_not_fit_together_is_refused() {
    let (k, p, w) = (&*kernels(), &*pairs(), &*workload());
    let other_gpu = p.replacen("a made-up GPU", "another GPU", 1);
    let other_kernel = p.replacen("zoo:fill n=1", "zoo:fill n=3", 1);
    let other_sms = w.replacen("\"sms\":8,\"driver\"", "\"sms\":9,\"driver\"", 1).replace("[8,", "[9,");
    let cases: [(Files, &str, &str); 7] = [
        (&[], "kernels.jsonl", "cannot be read"),
        (&[("kernels.jsonl", p)], "kernels.jsonl", "expected mosaic-kernels"),
        (
            &[("kernels.jsonl", k), ("pairs-1.jsonl", &other_gpu)],
            "pairs-1.jsonl",
            "line 1: gpu is another GPU with 8 SMs, expected a made-up GPU with 8 SMs as in kernels.jsonl",
        ),
        (
            &[("kernels.jsonl", k), ("pairs-1.jsonl", &other_kernel)],
            "pairs-1.jsonl",
            "line 2: a is \"zoo:fill n=3\", expected a key of kernels.jsonl or of a workload",
        ),
        (&[("kernels.jsonl", k), ("pairs-1.jsonl", p), ("pairs-2.jsonl", p)], "pairs-2.jsonl", "pairs-1.jsonl line 2)"),
        (
            &[("kernels.jsonl", k), ("workloads/a.jsonl", &other_sms)],
            "a.jsonl",
            "line 1: gpu is a made-up GPU with 9 SMs",
        ),
        (
            &[("kernels.jsonl", k), ("workloads/a.jsonl", w), ("workloads/b.jsonl", w)],
            "b.jsonl",
            "found the workload \"net\" again, expected it once",
        ),
    ];
    for (index, (files, file, says)) in cases.into_iter().enumerate() {
        let folder = Folder::new(&format!("unfit-{index}"), files);
        let error = DataSet::open(&folder.0).unwrap_err().to_string();
        assert!(error.contains(&format!("{file}: ")) && error.contains(says), "{file}: {says}: {error}");
    }
    let error = DataSet::open("/nonexistent".as_ref()).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/kernels.jsonl: cannot be read"), "{error}");
}

/// Fault: a summary without its counts, or under names that the header does not promise.
#[test]
fn a_summary_says_what_the_file_holds() {
    let summary = |text: String| serde_json::to_value(ProfileFile::parse(text.as_bytes()).unwrap().summary()).unwrap();
    let gpu = "a made-up GPU";
    assert_eq!(
        summary(kernels()),
        serde_json::json!({"format": "mosaic-kernels", "records": 3, "gpu": gpu, "sms": 8, "kernels": 3, "unseen": 0})
    );
    let by_mode: serde_json::Map<_, _> = PairMode::ALL.map(|m| (m.name().into(), 1.into())).into_iter().collect();
    assert_eq!(
        summary(pairs()),
        serde_json::json!({"format": "mosaic-pairs", "records": 5, "gpu": gpu, "sms": 8, "pairs": by_mode, "noisy": 0})
    );
    let workload = summary(workload());
    assert_eq!(
        (&workload["workload"], &workload["kernels"], &workload["launches"]),
        (&"net".into(), &2.into(), &3.into())
    );
}
