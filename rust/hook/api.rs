//! What the C++ extension calls on a request's path.

use super::request::{self, RequestError, Section};

/// Why a call failed.
pub type ApiError = RequestError;

/// A section that was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// To be given to [`leave`]; 0 if there is nothing to leave.
    pub ctx: u64,
    /// The stream to use (a CUstream); 0: stay on the caller's.
    pub stream: u64,
}

/// Sections entered and not left. Numbers, not pointers: a wrong one is an error, not a crash.
static SECTIONS: parking_lot::Mutex<Sections> = parking_lot::Mutex::new(Sections { next: 1, open: Vec::new() });

struct Sections {
    next: u64,
    open: Vec<(u64, Section)>,
}

/// Takes the thread, whose current stream is `caller_stream`, onto the job's stream. `request` 0: an HP job's call is
/// a request of its own.
pub fn enter(job: i64, request: i64, device: i32, caller_stream: usize) -> Result<Entered, ApiError> {
    let Some(section) = request::enter(job, request, device, caller_stream)? else {
        return Ok(Entered { ctx: 0, stream: 0 });
    };
    let stream = section.stream() as u64;
    let mut sections = SECTIONS.lock();
    let ctx = sections.next;
    sections.next += 1;
    sections.open.push((ctx, section));
    Ok(Entered { ctx, stream })
}

/// Ends the section. `ok`: the code in it did not raise.
pub fn leave(ctx: u64, ok: bool) -> Result<(), ApiError> {
    // In a forked child it was the parent that entered.
    if ctx == 0 || super::process::forked_after_use() {
        return Ok(());
    }
    let section = {
        let mut sections = SECTIONS.lock();
        let at = sections.open.iter().rposition(|(c, _)| *c == ctx);
        at.map(|at| sections.open.swap_remove(at).1)
    };
    request::leave(section.ok_or(RequestError::Unknown(ctx as i64))?, ok)
}
