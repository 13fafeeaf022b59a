//! Regression trees of XGBoost, evaluated in place: one row in less than a microsecond, to the bit as XGBoost does it.
//!
//! In: a model's JSON, as `Booster.save_model("model.json")` writes it. A model is read whole and checked whole, or
//! refused: whatever the file holds, nothing here panics on it.

mod error;
mod header;
mod table;
mod trees;

#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;

pub use error::GbdtError;

use table::Table;

/// The longest file that is read.
pub const MAX_FILE_BYTES: usize = 64 << 20;
/// The most trees of a model.
pub const MAX_TREES: usize = 10_000;
/// The most splits on the way from the root to a leaf.
pub const MAX_DEPTH: usize = 8;
/// The most features of a row.
pub const MAX_FEATURES: usize = 256;

/// A regression model: boosted trees with one output, and no function between their sum and the prediction.
#[derive(Clone, Debug)]
pub struct Model {
    features: usize,
    trees: usize,
    depth: usize,
    table: Table,
}

impl Model {
    /// Reads a model whose features have to be `features`, in this order: a row is positional.
    pub fn parse(json: &[u8], features: &[&str]) -> Result<Model, GbdtError> {
        if json.len() > MAX_FILE_BYTES {
            return Err(GbdtError::LongFile { found_bytes: json.len(), limit_bytes: MAX_FILE_BYTES });
        }
        let header = header::read(json, features)?;
        let (trees, depth) = trees::read(json, &header, features.len())?;
        let table = Table::new(header.base, &trees, features.len(), depth);
        Ok(Model { features: features.len(), trees: trees.len(), depth, table })
    }

    /// The prediction for a row of as many features as the model has; the same bits as XGBoost's.
    ///
    /// NaN is a missing feature, which takes each split's default way; so is one that a short row lacks. Infinities are
    /// numbers like others, as in XGBoost's `inplace_predict`.
    pub fn predict(&self, row: &[f32]) -> f32 {
        debug_assert_eq!(row.len(), self.features);
        self.table.predict(row)
    }

    /// Features of a row.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Number of trees.
    pub fn trees(&self) -> usize {
        self.trees
    }

    /// Splits on the longest way from a root to a leaf.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Size of the tables that a prediction reads.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }
}
