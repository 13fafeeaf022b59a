//! `libmosaic_engine.so` preloaded into an unmodified program: the role that `mosaic run` put into the environment.
//!
//! It steps aside in a Python process, where the package does this, and anywhere else than under LD_PRELOAD.

use super::job::{self, ProcessRole, Role};
use super::problems;
use std::ffi::CStr;

/// The file that this works in.
const ENGINE: &[u8] = b"libmosaic_engine.so";

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let applied = std::panic::catch_unwind(|| match variable("MOSAIC_ROLE") {
        Some(role) if is_preloaded() && !is_python() => apply(&role),
        _ => Ok(()),
    });
    if let Err(e) = applied.unwrap_or_else(|_| Err("internal error, please report it".into())) {
        // Nobody is there yet to take an error: the program runs on, and its user has to know that it has no role.
        problems::report(format!("this process runs WITHOUT its role: {e}"));
    }
}

/// A variable that is set to something; names may be no UTF-8.
fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().trim().to_string();
    Some(text).filter(|text| !text.is_empty())
}

fn apply(role: &str) -> Result<(), String> {
    let role = match role.to_lowercase().as_str() {
        "hp" => Role::Hp,
        "be" => Role::Be,
        other => return Err(format!("found MOSAIC_ROLE={other}, expected hp or be")),
    };
    let slo = variable("MOSAIC_SLO").unwrap_or_else(|| "1.1".into());
    let slo_ratio = slo
        .parse()
        .ok()
        .filter(|s| (1.0..=1000.0).contains(s))
        .ok_or_else(|| format!("found MOSAIC_SLO={slo}, expected a ratio from 1.0 to 1000"))?;
    let own_name = || std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    let name = variable("MOSAIC_NAME").unwrap_or_else(own_name);
    let Err(e) = super::install() else {
        job::set_process_role(ProcessRole { role, name, slo_ratio });
        return Ok(());
    };
    // Without a driver there is nothing to share: shells and helpers of the job come by here too.
    if super::driver::load().is_err() { Ok(()) } else { Err(e.to_string()) }
}

fn is_preloaded() -> bool {
    let mut info: libc::Dl_info = no_info();
    // SAFETY: asks which file holds this function.
    let found = unsafe { libc::dladdr(at_load as *const libc::c_void, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: on success a nul-terminated path that lives as long as the file is loaded.
    found
        && unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().ends_with(ENGINE)
        && std::env::var_os("LD_PRELOAD")
            .is_some_and(|l| l.as_encoded_bytes().windows(ENGINE.len()).any(|w| w == ENGINE))
}

fn no_info() -> libc::Dl_info {
    libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    }
}

fn is_python() -> bool {
    // SAFETY: a lookup in the global scope by a nul-terminated name.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"Py_BytesMain".as_ptr()) }.is_null()
}
