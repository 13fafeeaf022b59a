//! A model that XGBoost wrote, evaluated to its bits; and the same model, damaged in every way.

use mosaic::gbdt::Model;
use mosaic::sim::Rng;
use serde_json::{Value, json};

const MODEL: &[u8] = include_bytes!("gbdt/model.json");
const ROWS: &str = include_str!("gbdt/rows.csv");
const FEATURES: [&str; 16] =
    ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15"];

#[test]
fn predictions_are_the_bits_of_xgboost() {
    let model = Model::parse(MODEL, &FEATURES).expect("a model");
    assert_eq!((model.trees(), model.depth(), model.features()), (100, 5, 16));
    let (mut rows, mut missing) = (0, 0);
    for (number, line) in ROWS.lines().enumerate().skip(1) {
        let (row, bits) = line.rsplit_once(',').expect("a row and bits");
        let row: Vec<f32> = row.split(',').map(|x| x.parse().expect("a number")).collect();
        let expected = u32::from_str_radix(bits, 16).expect("bits");
        let found = model.predict(&row);
        assert_eq!(found.to_bits(), expected, "line {}: found {found}", number + 1);
        (rows, missing) = (rows + 1, missing + usize::from(row.iter().any(|x| x.is_nan())));
    }
    assert!(rows == 200 && missing > 90, "{rows} rows, {missing} with missing features");
}

/// Fault: a damaged file panics, or never ends.
#[test]
fn a_damaged_file_is_refused_or_evaluates() {
    let mut rng = Rng::new(1);
    let small = first_trees(3);
    let text = small.to_string().into_bytes();
    let mut outcomes = [0; 2];
    for round in 0..24_000 {
        let damaged = match round % 2 {
            0 => damaged_text(&mut rng, &text),
            _ => {
                let mut model = small.clone();
                (0..=below(&mut rng, 3)).for_each(|_| damage_part(&mut rng, &mut model));
                model.to_string().into_bytes()
            }
        };
        outcomes[usize::from(evaluates(&mut rng, &damaged))] += 1;
    }
    // Neither outcome is so rare that its half of the code is not reached.
    assert!(outcomes.iter().all(|n| *n > 2_000), "refused and evaluated: {outcomes:?}");
    for _ in 0..100 {
        let damaged = damaged_text(&mut rng, MODEL);
        evaluates(&mut rng, &damaged);
    }
}

fn evaluates(rng: &mut Rng, json: &[u8]) -> bool {
    let Ok(model) = Model::parse(json, &FEATURES) else { return false };
    for _ in 0..4 {
        let row: [f32; 16] = std::array::from_fn(|_| f32::from_bits(rng.next_u64() as u32));
        std::hint::black_box(model.predict(&row));
    }
    true
}

/// The golden model, cut down so that thousands of it are read in seconds.
fn first_trees(trees: usize) -> Value {
    let mut file: Value = serde_json::from_slice(MODEL).expect("JSON");
    let model = file.pointer_mut("/learner/gradient_booster/model").expect("a model");
    model["gbtree_model_param"]["num_trees"] = json!(trees.to_string());
    for field in ["tree_info", "trees"] {
        model[field].as_array_mut().expect("an array").truncate(trees);
    }
    // What is not read takes no damage.
    for tree in model["trees"].as_array_mut().expect("trees") {
        let read = ["children", "split", "default_left", "tree_param"];
        tree.as_object_mut().expect("a tree").retain(|field, _| read.iter().any(|part| field.contains(part)));
    }
    assert!(evaluates(&mut Rng::new(1), file.to_string().as_bytes()));
    file
}

fn below(rng: &mut Rng, end: usize) -> usize {
    (rng.next_u64() % end.max(1) as u64) as usize
}

/// Flipped bits, other characters, parts that are missing or stand twice.
fn damaged_text(rng: &mut Rng, text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    for _ in 0..=below(rng, 3) {
        let at = below(rng, text.len());
        let end = (at + below(rng, 30)).min(text.len());
        match below(rng, 10) {
            0 => text.truncate(at),
            1 => drop(text.drain(at..end)),
            2 => drop(text.splice(at..at, text[at..end].to_vec())),
            3 | 4 if !text.is_empty() => text[at] ^= 1 << below(rng, 8),
            _ if !text.is_empty() => text[at] = b"0123456789-+.eE,:[]{}\"ntf"[below(rng, 25)],
            _ => {}
        }
    }
    text
}

/// Mostly within a tree.
fn damage_part(rng: &mut Rng, file: &mut Value) {
    let tree = file.pointer_mut(&format!("/learner/gradient_booster/model/trees/{}", below(rng, 3)));
    let Some(Value::Object(tree)) = tree else { return damage(rng, file) };
    match (below(rng, 5), tree.get("left_children").cloned()) {
        (0, _) => damage(rng, file),
        (1, Some(left)) => {
            let right = tree.insert("right_children".to_owned(), left);
            tree.insert("left_children".to_owned(), right.unwrap_or_default());
        }
        // Children as they should be, but of another node: an ancestor, itself, a stranger.
        (2, Some(Value::Array(left))) => {
            let (node, child) = (below(rng, left.len()), below(rng, left.len()));
            for (field, child) in [("left_children", child), ("right_children", child + 1)] {
                if let Some(place) = tree.get_mut(field).and_then(|children| children.get_mut(node)) {
                    *place = json!(child);
                }
            }
        }
        _ => tree.values_mut().for_each(|field| {
            if below(rng, 6) == 0 {
                damage(rng, field);
            }
        }),
    }
}

/// One place, any of them, becomes something else.
fn damage(rng: &mut Rng, value: &mut Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && below(rng, 30) > 0 => {
            let index = below(rng, fields.len());
            match below(rng, 40) {
                0 => fields.retain(|_, _| below(rng, 8) > 0),
                _ => damage(rng, fields.values_mut().nth(index).expect("a field")),
            }
        }
        Value::Array(items) if !items.is_empty() && below(rng, 30) > 0 => {
            let (one, other) = (below(rng, items.len()), below(rng, items.len()));
            match below(rng, 20) {
                0 => items.swap(one, other),
                1 => items[one] = items[other].clone(),
                2 => items.truncate(one),
                3 => items.push(items[one].clone()),
                _ => damage(rng, &mut items[one]),
            }
        }
        other => *other = odd(rng),
    }
}

fn odd(rng: &mut Rng) -> Value {
    match below(rng, 16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(""),
        3 => json!([]),
        4 => json!({}),
        5 => json!("[1E0,2E0]"),
        6 => json!("1E999"),
        7 => json!("18446744073709551615"),
        8 => json!(1e39),
        9 => json!(f64::MIN),
        10 => json!(i32::MAX),
        11 => json!(i64::MIN),
        12 => json!(u64::MAX),
        13 => (0..below(rng, 120)).fold(json!(0), |inner, _| json!([inner])),
        // Children, features: most of these are in range somewhere.
        _ => json!(below(rng, 64) as i64 - 1),
    }
}
