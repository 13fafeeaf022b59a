//! The layout against the oracle, and what is refused.

use super::{Model, header, naive, trees};
use crate::sim::Rng;
use serde_json::{Value, json};

/// Thresholds and features come from these, so that they are often equal.
const POOL: [f32; 12] =
    [0.0, -0.0, 1.0, -1.0, 1.000_000_1, 0.1, -0.3, 1e-40, -1e-45, f32::MIN_POSITIVE, f32::MAX, f32::MIN];

fn below(rng: &mut Rng, end: usize) -> usize {
    (rng.next_u64() % end as u64) as usize
}

fn names(features: usize) -> Vec<String> {
    (0..features).map(|index| format!("x{index}")).collect()
}

fn parse(model: &Value, features: usize) -> Result<Model, String> {
    let names = names(features);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Model::parse(model.to_string().as_bytes(), &names).map_err(|e| e.to_string())
}

fn model(trees: Vec<Value>, features: usize) -> Value {
    json!({"version": [3, 4, 1], "learner": {
        "attributes": {},
        "feature_names": names(features),
        "gradient_booster": {"name": "gbtree", "model": {
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": trees.len().to_string()},
            "tree_info": vec![0; trees.len()],
            "trees": trees,
        }},
        "learner_model_param": {
            "base_score": "[-2.5E-1]", "num_class": "0", "num_feature": features.to_string(), "num_target": "1",
        },
        "objective": {"name": "reg:squarederror"},
    }})
}

/// A tree with a leaf at every fourth node or so, and everywhere `depth` splits down.
fn tree(rng: &mut Rng, depth: usize, features: usize) -> Value {
    let mut nodes = vec![(-1, 0, 0.0, false)];
    let mut level = vec![0];
    for splits in 0..=depth {
        for node in std::mem::take(&mut level) {
            if splits == depth || below(rng, 4) == 0 {
                nodes[node].2 = (rng.unit() - 0.5) as f32;
                continue;
            }
            let left = nodes.len();
            nodes[node] = (left as i32, below(rng, features), POOL[below(rng, POOL.len())], below(rng, 2) == 1);
            nodes.extend([(-1, 0, 0.0, false); 2]);
            level.extend([left, left + 1]);
        }
    }
    json!({
        "left_children": nodes.iter().map(|n| n.0).collect::<Vec<_>>(),
        "right_children": nodes.iter().map(|n| if n.0 < 0 { -1 } else { n.0 + 1 }).collect::<Vec<_>>(),
        "split_indices": nodes.iter().map(|n| n.1).collect::<Vec<_>>(),
        "split_conditions": nodes.iter().map(|n| n.2).collect::<Vec<_>>(),
        "default_left": nodes.iter().map(|n| u8::from(n.3)).collect::<Vec<_>>(),
        "split_type": vec![0; nodes.len()],
        "tree_param": {"size_leaf_vector": "1"},
    })
}

fn row(rng: &mut Rng, features: usize, missing: bool) -> Vec<f32> {
    let mut feature = || match below(rng, 8) {
        0 if missing => f32::NAN,
        1 => f32::INFINITY,
        2 => f32::NEG_INFINITY,
        3 => (rng.unit() - 0.5) as f32,
        _ => POOL[below(rng, POOL.len())],
    };
    (0..features).map(|_| feature()).collect()
}

#[test]
fn the_layout_agrees_with_the_oracle_to_the_bit() {
    let mut rng = Rng::new(1);
    for features in [1, 16, 32, 33, 256] {
        for count in [0, 1, 7, 8, 9, 100] {
            for depth in 0..=8 {
                let file = model((0..count).map(|_| tree(&mut rng, depth, features)).collect(), features);
                let parsed = parse(&file, features).expect("a model");
                assert_eq!((parsed.trees(), parsed.features()), (count, features));
                assert!(parsed.depth() <= depth);
                let (json, names) = (file.to_string(), names(features));
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let header = header::read(json.as_bytes(), &names).expect("a header");
                let (trees, _) = trees::read(json.as_bytes(), &header, features).expect("trees");
                for missing in [false, true] {
                    for _ in 0..40 {
                        let row = row(&mut rng, features, missing);
                        let (found, expected) = (parsed.predict(&row), naive::predict(header.base, &trees, &row));
                        assert_eq!(found.to_bits(), expected.to_bits(), "{count} trees x {depth}: {row:?}");
                    }
                }
            }
        }
    }
}

/// Two trees over three features: x1 < 0.5 or missing, and below it x2 < 1.
fn small() -> Value {
    let tree = json!({
        "left_children": [1, 3, -1, -1, -1], "right_children": [2, 4, -1, -1, -1],
        "split_indices": [1, 2, 0, 0, 0], "split_conditions": [0.5, 1.0, 4.0, 8.0, 16.0],
        "default_left": [1, 0, 0, 0, 0], "split_type": [0, 0, 0, 0, 0], "tree_param": {"size_leaf_vector": "1"},
    });
    model(vec![tree; 2], 3)
}

#[test]
fn equal_goes_right_and_missing_the_default_way() {
    let model = parse(&small(), 3).expect("a model");
    assert_eq!((model.trees(), model.depth(), model.bytes()), (2, 2, 8 * 4 * (8 + 4)));
    for (row, leaf) in [
        ([0.0, 0.4, 0.9], 8.0),
        ([0.0, 0.4, 1.0], 16.0),
        ([0.0, 0.5, 0.0], 4.0),
        ([0.0, f32::NAN, 0.0], 8.0),
        ([0.0, 0.0, f32::NAN], 16.0),
    ] {
        assert_eq!(model.predict(&row), 2.0 * leaf - 0.25, "{row:?}");
    }
    // Fault: the trees that fill up a group make -0.0 a 0.0.
    let leaf = json!({"left_children": [-1], "right_children": [-1], "split_indices": [0], "split_conditions": [-0.0],
        "default_left": [0]});
    let mut zero = self::model(vec![leaf], 3);
    zero["learner"]["learner_model_param"]["base_score"] = json!("-0E0");
    assert_eq!(parse(&zero, 3).expect("a model").predict(&[0.0; 3]).to_bits(), (-0.0_f32).to_bits());
    // What a short row lacks is missing, what a long one has more is ignored.
    assert_eq!(model.table.predict(&[]), model.predict(&[f32::NAN; 3]));
    assert_eq!(model.table.predict(&[0.0; 1000]), model.predict(&[0.0; 3]));
}

#[test]
fn what_xgboost_writes_in_several_ways_is_read() {
    let mut file = small();
    file["learner"]["learner_model_param"]["base_score"] = json!("5E-1");
    file["learner"]["attributes"]["best_iteration"] = json!("0");
    file["learner"]["gradient_booster"]["model"]["gbtree_model_param"]["num_parallel_tree"] = json!("2");
    for tree in file["learner"]["gradient_booster"]["model"]["trees"].as_array_mut().expect("trees") {
        tree["default_left"] = json!([true, false, false, false, false]);
        tree["tree_param"]["size_leaf_vector"] = json!("0");
    }
    file["learner"]["objective"]["name"] = json!("reg:absoluteerror");
    assert_eq!(parse(&file, 3).expect("a model").predict(&[0.0, f32::NAN, 0.0]), 16.5);
}

/// Each case: where, what stands there instead, and what the refusal has to say.
#[test]
fn another_kind_of_model_is_refused_by_name() {
    const LEARNER: &str = "/learner/";
    const BOOSTER: &str = "/learner/gradient_booster/";
    const PARAM: &str = "/learner/learner_model_param/";
    const MODEL: &str = "/learner/gradient_booster/model/";
    const TREE: &str = "/learner/gradient_booster/model/trees/1/";
    let early = json!({"best_iteration": "0"});
    let cases = [
        (BOOSTER, "name", json!("dart"), "booster is \"dart\", expected \"gbtree\""),
        (BOOSTER, "name", json!("gblinear"), "booster is \"gblinear\""),
        (MODEL, "weight_drop", json!([1.0, 1.0]), "(dart)"),
        (LEARNER, "objective", json!({"name": "reg:gamma"}), "objective is \"reg:gamma\", expected one with identity"),
        (PARAM, "num_class", json!("3"), "num_class is 3"),
        (PARAM, "num_target", json!("2"), "num_target is 2"),
        (PARAM, "num_feature", json!("4"), "num_feature is 4, expected 3"),
        (PARAM, "num_feature", json!("257"), "num_feature is 257, expected at most 256"),
        (PARAM, "num_feature", json!("many"), "num_feature is \"many\", expected a count"),
        (PARAM, "base_score", json!("[1E0,2E0]"), "base_score is \"[1E0,2E0]\", expected one finite number"),
        (PARAM, "base_score", json!("nan"), "base_score is"),
        (PARAM, "base_score", json!("1E39"), "base_score is"),
        (PARAM, "base_score", json!("[]"), "base_score is"),
        (LEARNER, "feature_names", json!(["x0", "x2", "x1"]), "feature_names[1] is \"x2\", expected \"x1\""),
        (LEARNER, "feature_names", json!([]), "length of feature_names is 0, expected num_feature, 3"),
        (LEARNER, "attributes", early, "best_iteration is 0, expected the last of 2 iterations"),
        (MODEL, "tree_info", json!([0, 1]), "tree_info[1] is 1, expected 0"),
        (MODEL, "tree_info", json!([0]), "length of tree_info is 1, expected num_trees, 2"),
        (MODEL, "gbtree_model_param", json!({"num_trees": "10001"}), "num_trees is 10001, expected at most 10000"),
        (MODEL, "gbtree_model_param", json!({}), "num_trees is absent"),
        (MODEL, "trees", json!([]), "length of trees is 0, expected num_trees, 2"),
        (TREE, "tree_param", json!({"size_leaf_vector": "2"}), "tree 1: found size_leaf_vector \"2\""),
        (TREE, "split_type", json!([0, 1]), "tree 1, node 1: found a categorical split"),
        (TREE, "split_indices", json!([1, 3, 0, 0, 0]), "tree 1, node 1: found feature 3, expected one below 3"),
        (TREE, "split_indices", json!([1, -2, 0, 0, 0]), "invalid value: integer `-2`"),
        (TREE, "split_conditions", json!([0.5, 1e39, 4, 8, 16]), "tree 1, node 1: found the value inf"),
        (TREE, "split_conditions", json!([0.5, 1, 4, 8, -1e39]), "tree 1, node 4: found the value -inf"),
        (TREE, "split_conditions", json!([0.5]), "tree 1: found arrays of 5, [5, 5, 1, 5] nodes"),
        (TREE, "default_left", json!([2, 0, 0, 0, 0]), "expected 0 or 1"),
        (
            TREE,
            "left_children",
            json!([2, 3, -1, -1, -1]),
            "tree 1, node 0: found the children 2 and 2, expected neigh",
        ),
        (TREE, "left_children", json!([1, -7, -1, -1, -1]), "tree 1, node 1: found the children -7 and 4"),
        (TREE, "right_children", json!([2, 5, -1, -1, -1]), "tree 1, node 1: found the children 3 and 5"),
        (TREE, "right_children", json!([2, -1, -1, -1, -1]), "tree 1, node 1: found the children 3 and -1"),
    ];
    for (at, field, value, expected) in cases {
        let mut file = small();
        file.pointer_mut(at.trim_end_matches('/')).expect("a place")[field] = value;
        let refusal = parse(&file, 3).expect_err(expected);
        assert!(refusal.contains(expected), "found {refusal:?}, expected {expected:?}");
    }
}

#[test]
fn what_is_no_tree_is_refused() {
    const TREE: &str = "/learner/gradient_booster/model/trees/1";
    for (node, child, expected) in [
        (1, 0, "tree 1, node 0: found a second way to it, expected a tree"),
        (1, 1, "tree 1, node 1: found a second way"),
        (2, 3, "tree 1, node 3: found a second way"),
        (4, 4, "tree 1, node 4: found the children 4 and 5"),
        (4, i32::MAX - 1, "found the children 2147483646 and 2147483647"),
    ] {
        let mut file = small();
        let tree = file.pointer_mut(TREE).expect("a tree");
        tree["left_children"][node] = json!(child);
        tree["right_children"][node] = json!(child + 1);
        let refusal = parse(&file, 3).expect_err(expected);
        assert!(refusal.contains(expected), "found {refusal:?}, expected {expected:?}");
    }
    // 9 splits in a row: node 2n leads to 2n + 1, a leaf, and 2n + 2.
    let child = |first| (0..19).map(|n| if n % 2 == 0 && n < 18 { n + first } else { -1 }).collect::<Vec<i32>>();
    let mut file = small();
    let tree = file.pointer_mut(TREE).expect("a tree");
    (tree["left_children"], tree["right_children"]) = (json!(child(1)), json!(child(2)));
    for field in ["split_indices", "split_conditions", "default_left"] {
        tree[field] = json!(vec![0; 19]);
    }
    let refusal = parse(&file, 3).expect_err("too deep");
    assert_eq!(refusal, "tree 1: found more than 8 levels, expected at most 8");
}

#[test]
fn what_is_no_model_is_refused() {
    for (text, expected) in [
        ("", "not a model of XGBoost: EOF"),
        ("{}", "missing field `learner`"),
        ("{\"learner\": 3}", "invalid type: integer `3`"),
        (&"[".repeat(100_000), "invalid type: sequence"),
        (&format!("{{\"x\": {}", "[".repeat(100_000)), "EOF"),
    ] {
        let refusal = Model::parse(text.as_bytes(), &[]).expect_err(expected).to_string();
        assert!(refusal.contains(expected), "found {refusal:?}, expected {expected:?}");
    }
    let long = vec![b' '; super::MAX_FILE_BYTES + 1];
    let refusal = Model::parse(&long, &[]).expect_err("too long").to_string();
    assert_eq!(refusal, "found 67108865 bytes, expected a model of at most 67108864");
}
