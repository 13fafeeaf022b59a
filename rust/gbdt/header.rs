//! What a model's file says of the model as a whole: is it of the one kind that is evaluated here?

use super::{GbdtError, MAX_FEATURES, MAX_TREES};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Those whose prediction is the sum itself: with the others it goes through exp() or a logistic function.
const IDENTITY: [&str; 5] =
    ["reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "reg:squaredlogerror", "reg:quantileerror"];

/// What is used of the header.
pub(super) struct Header {
    /// What the sum of leaves starts from.
    pub base: f32,
    /// Trees that the file has to hold.
    pub trees: usize,
}

/// Reads the header alone: a model of another kind is refused by name, whatever its trees look like.
pub(super) fn read(json: &[u8], features: &[&str]) -> Result<Header, GbdtError> {
    let File { learner } = serde_json::from_slice(json)?;
    check_kind(&learner)?;
    check_features(&learner, features)?;
    let model = learner.gradient_booster.model.unwrap_or_default();
    let trees = count("num_trees", model.gbtree_model_param.num_trees.as_deref())?;
    if trees > MAX_TREES {
        return Err(GbdtError::field("num_trees", trees, format!("at most {MAX_TREES}")));
    }
    if model.tree_info.len() != trees {
        return Err(GbdtError::field("length of tree_info", model.tree_info.len(), format!("num_trees, {trees}")));
    }
    if let Some((index, output)) = model.tree_info.iter().enumerate().find(|(_, output)| **output != 0) {
        return Err(GbdtError::field(format!("tree_info[{index}]"), output, "0: one output"));
    }
    if let Some(best) = learner.attributes.best_iteration.as_deref() {
        let rounds = trees / count("num_parallel_tree", model.gbtree_model_param.num_parallel_tree.as_deref())?.max(1);
        if count("best_iteration", Some(best))?.checked_add(1) != Some(rounds) {
            let expected = format!("the last of {rounds} iterations: slice the model up to its best before saving it");
            return Err(GbdtError::field("best_iteration", best, expected));
        }
    }
    Ok(Header { base: base_score(&learner.learner_model_param.base_score)?, trees })
}

fn check_kind(learner: &Learner) -> Result<(), GbdtError> {
    let booster = &learner.gradient_booster;
    if booster.name != "gbtree" {
        return Err(GbdtError::field("booster", format!("{:?}", booster.name), "\"gbtree\""));
    }
    // Since 3.4 dart is a gbtree with weights.
    if booster.model.as_ref().is_some_and(|model| model.weight_drop.is_some()) {
        return Err(GbdtError::field("booster", "\"gbtree\" with weight_drop (dart)", "trees without weights"));
    }
    let objective = &learner.objective.name;
    if !IDENTITY.contains(&objective.as_str()) {
        let expected = format!("one with identity link: {}", IDENTITY.join(", "));
        return Err(GbdtError::field("objective", format!("{objective:?}"), expected));
    }
    let param = &learner.learner_model_param;
    for (field, text) in [("num_class", &param.num_class), ("num_target", &param.num_target)] {
        // Absent in old files; 0 is how a regression's num_class is written.
        if text.is_some() && count(field, text.as_deref())? > 1 {
            return Err(GbdtError::field(field, text.as_deref().unwrap_or_default(), "at most 1: one output"));
        }
    }
    Ok(())
}

fn check_features(learner: &Learner, expected: &[&str]) -> Result<(), GbdtError> {
    let found = count("num_feature", learner.learner_model_param.num_feature.as_deref())?;
    if found > MAX_FEATURES {
        return Err(GbdtError::field("num_feature", found, format!("at most {MAX_FEATURES}")));
    }
    if found != expected.len() {
        return Err(GbdtError::field("num_feature", found, expected.len().to_string()));
    }
    let names = &learner.feature_names;
    if names.len() != found {
        return Err(GbdtError::field("length of feature_names", names.len(), format!("num_feature, {found}")));
    }
    match names.iter().zip(expected).enumerate().find(|(_, (name, expected))| name != *expected) {
        Some((index, (name, expected))) => {
            Err(GbdtError::field(format!("feature_names[{index}]"), format!("{name:?}"), format!("{expected:?}")))
        }
        None => Ok(()),
    }
}

/// Numbers of the header are text.
fn count(field: &str, text: Option<&str>) -> Result<usize, GbdtError> {
    let found = text.ok_or_else(|| GbdtError::field(field, "absent", "a count"))?;
    found.parse().map_err(|_| GbdtError::field(field, format!("{found:?}"), "a count"))
}

/// `5E-1`, or `[5E-1]` since 3.1.
fn base_score(text: &str) -> Result<f32, GbdtError> {
    let number = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let value: Option<f32> = number.parse().ok();
    value
        .filter(|value| value.is_finite())
        .ok_or_else(|| GbdtError::field("base_score", format!("{text:?}"), "one finite number"))
}

#[derive(Deserialize)]
struct File {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    feature_names: Vec<String>,
    gradient_booster: Booster,
    learner_model_param: LearnerParam,
    objective: Objective,
}

#[derive(Default, Deserialize)]
struct Attributes {
    best_iteration: Option<String>,
}

#[derive(Deserialize)]
struct Booster {
    name: String,
    model: Option<BoosterModel>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BoosterModel {
    gbtree_model_param: TreesParam,
    tree_info: Vec<i64>,
    weight_drop: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct TreesParam {
    num_trees: Option<String>,
    num_parallel_tree: Option<String>,
}

#[derive(Deserialize)]
struct LearnerParam {
    base_score: String,
    num_class: Option<String>,
    num_feature: Option<String>,
    num_target: Option<String>,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
}
