//! What went wrong where no call can return it: said once on standard error, and kept for `stats()` and `doctor`.

use parking_lot::Mutex;
use std::io::Write;

/// More than this are not told apart any longer.
const MOST: usize = 32;

static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Tells the user, the first time.
pub fn report(what: String) {
    let mut found = FOUND.lock();
    if found.len() < MOST && !found.contains(&what) {
        // A program may have closed it.
        let _ = writeln!(std::io::stderr(), "mosaic: {what}");
        found.push(what);
    }
}

/// What has been reported so far.
pub fn all() -> Vec<String> {
    FOUND.lock().clone()
}
