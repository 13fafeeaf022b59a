//! Placeholder.

use std::{collections::HashSet, fmt};

use parking_lot::Mutex;

/// A section.
pub struct Entered {
    /// Its name.
    pub ctx: u64,
    /// Its stream.
    pub stream: u64,
}

/// Why not.
#[derive(Debug)]
pub struct ApiError(String);

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ApiError {}

static OPEN: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// Enters.
pub fn enter(job: i64, _request: i64, _device: i32, _caller_stream: usize) -> Result<Entered, ApiError> {
    if job != 1 {
        return Err(ApiError(format!("job {job} is not registered")));
    }
    let mut open = OPEN.lock();
    let open = open.get_or_insert_default();
    let ctx = open.len() as u64 + 1;
    open.insert(ctx);
    Ok(Entered { ctx, stream: 0 })
}

/// Leaves.
pub fn leave(ctx: u64, _ok: bool) -> Result<(), ApiError> {
    match OPEN.lock().as_mut().is_some_and(|open| open.remove(&ctx)) {
        true => Ok(()),
        false => Err(ApiError(format!("section {ctx} is not open"))),
    }
}
