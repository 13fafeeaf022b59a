//! The launch path: libcuda's entry points are detoured in this process; each launch on a stream that has a role is
//! counted (HP) or passes the gate (BE).
//!
//! [`entry`] is what the driver's callers meet, [`gate`] where BE waits, [`request`] where HP requests begin and end,
//! [`watch`] what the keeper thread does, [`api`] what Python and C++ call.

pub mod api;
pub mod calibration;
pub mod callbacks;
pub mod capi;
pub mod cupti;
pub mod detour;
pub mod device;
pub mod doctor;
pub mod driver;
pub mod entry;
pub mod gate;
pub mod gil;
pub mod graphs;
pub mod handles;
pub mod histogram;
pub mod job;
pub mod kept;
pub mod names;
pub mod observe;
#[cfg(not(feature = "torch"))]
mod preload;
pub mod problems;
pub mod process;
pub mod prologue;
pub mod record;
pub mod request;
pub mod settings;
pub mod stalls;
pub mod stats;
pub mod tracker;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trap;
pub mod watch;

use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use settings::{Settings, SettingsError};
use std::fmt;

/// How launches are seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "mechanism", rename_all = "kebab-case")]
pub enum Mechanism {
    /// The entry points are detoured.
    Detour {
        /// How many.
        entry_points: usize,
        /// Those that this driver has but that could not be detoured, and why: none of them decides who runs.
        missing: Vec<String>,
    },
    /// A CUPTI subscriber: launches can be held, not changed.
    Cupti {
        /// Why not the detour.
        because: String,
    },
    /// Launches are not seen: BE runs only through `best_effort()` sections.
    SectionsOnly {
        /// Why neither of the others.
        because: String,
    },
}

/// The hook could not be installed.
#[derive(Debug)]
#[non_exhaustive]
pub enum HookError {
    /// No usable driver.
    Driver(String),
    /// A setting was refused.
    Settings(SettingsError),
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookError::Driver(text) => f.write_str(text),
            HookError::Settings(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for HookError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HookError::Settings(e) => Some(e),
            HookError::Driver(_) => None,
        }
    }
}

static INSTALLED: Mutex<Option<Mechanism>> = Mutex::new(None);
static SETTINGS: RwLock<Option<Settings>> = RwLock::new(None);

/// The settings in force.
pub fn settings() -> Settings {
    (*SETTINGS.read()).unwrap_or_default()
}

/// Changes settings: a JSON object of those that change.
pub fn configure(json: &str) -> Result<(), SettingsError> {
    let mut current = SETTINGS.write();
    let before = current.map_or_else(Settings::from_env, Ok)?;
    let new = before.merged(json)?;
    *current = Some(new);
    // Under the lock: gate and settings say the same.
    gate::configure(&new);
    Ok(())
}

/// Whether launches are not seen, so that a section is admitted as a whole.
pub fn sections_only() -> bool {
    matches!(&*INSTALLED.lock(), Some(Mechanism::SectionsOnly { .. }))
}

/// The mechanism in force, once installed.
pub fn mechanism() -> Option<Mechanism> {
    INSTALLED.lock().clone()
}

/// Installs the hook. Idempotent; needs the driver's library, but neither a GPU nor an initialised CUDA.
pub fn install() -> Result<Mechanism, HookError> {
    let mut installed = INSTALLED.lock();
    if let Some(mechanism) = &*installed {
        return Ok(mechanism.clone());
    }
    driver::load().map_err(|e| HookError::Driver(e.to_string()))?;
    {
        let mut current = SETTINGS.write();
        let settings = match *current {
            Some(s) => s,
            None => Settings::from_env().map_err(HookError::Settings)?,
        };
        *current = Some(settings);
        gate::configure(&settings);
    }
    let wish = wished_mechanism().map_err(HookError::Settings)?;
    process::watch_forks();
    let mechanism = choose_mechanism(&wish);
    tracing::info!(?mechanism, "launch hook");
    *installed = Some(mechanism.clone());
    Ok(mechanism)
}

/// What `MOSAIC_HOOK` asks for; empty: the best.
fn wished_mechanism() -> Result<String, SettingsError> {
    let wish = std::env::var_os("MOSAIC_HOOK").unwrap_or_default().to_string_lossy().into_owned();
    match wish.as_str() {
        "" | "detour" | "cupti" | "sections" => Ok(wish),
        _ => {
            let expected = "detour, cupti or sections".into();
            Err(SettingsError::Value { name: "MOSAIC_HOOK".into(), found: wish, expected })
        }
    }
}

/// The best mechanism that can be had, from the one that `MOSAIC_HOOK` names downwards: detour, cupti, sections.
fn choose_mechanism(wish: &str) -> Mechanism {
    let asked = |what: &str| format!("MOSAIC_HOOK={what} asks for it");
    let because = match wish {
        "cupti" | "sections" => asked(wish),
        _ => match install_detours() {
            Ok(mechanism) => return mechanism,
            // Some launches come through a detour now: callbacks would see those twice.
            Err((because, true)) => return Mechanism::SectionsOnly { because },
            Err((because, false)) => because,
        },
    };
    if wish == "sections" {
        return Mechanism::SectionsOnly { because };
    }
    match callbacks::install() {
        Ok(_) => Mechanism::Cupti { because },
        Err(e) => Mechanism::SectionsOnly { because: format!("{because}; {e}") },
    }
}

/// Detours the launches, all or none of use; then the rest, each of its own worth. An error says why, and whether some
/// had been detoured.
fn install_detours() -> Result<Mechanism, (String, bool)> {
    let mut entry_points = 0;
    for (entry, replacement) in entry::LAUNCHES {
        match detour_one(*entry, *replacement) {
            Ok(done) => entry_points += usize::from(done),
            Err(because) => return Err((because, entry_points > 0)),
        }
    }
    let mut missing = Vec::new();
    for (entry, replacement) in entry::OTHERS {
        match detour_one(*entry, *replacement) {
            Ok(done) => entry_points += usize::from(done),
            Err(why) => missing.push(why),
        }
    }
    detour_front(&mut missing);
    Ok(Mechanism::Detour { entry_points, missing })
}

/// False: this driver has no such entry point.
fn detour_one(entry: driver::Entry, replacement: *const ()) -> Result<bool, String> {
    let slot = driver::slot(entry);
    let target = slot.load(std::sync::atomic::Ordering::Acquire);
    if target.is_null() {
        return Ok(false);
    }
    let publish = |original: *const ()| slot.store(original.cast_mut(), std::sync::atomic::Ordering::Release);
    take_over(entry, target, replacement, publish)
}

/// Launches that come through a library that stands before libcuda go on behind it, as the runtime's do: else a range for
/// a profiler (observe.rs) would begin too late, after its library has seen the launch. They are seen either way.
fn detour_front(missing: &mut Vec<String>) {
    for (entry, replacement) in entry::LAUNCHES {
        let front = driver::front(*entry);
        if front.is_null() {
            continue;
        }
        if let Err(why) = take_over(*entry, front, *replacement, |_| {}) {
            missing.push(format!("{why} (in a library that stands before libcuda)"));
        }
    }
}

/// False: another name of this function was taken over before. `publish` gets the original.
fn take_over(
    entry: driver::Entry,
    target: *const (),
    replacement: *const (),
    publish: impl FnOnce(*const ()),
) -> Result<bool, String> {
    // SAFETY: the replacement has the entry point's signature (entry.rs), and never unwinds. No library goes away: ours
    // stays loaded (`process::stay_loaded`), and statics of driver.rs hold the driver's and what stands before it.
    match unsafe { detour::install_with(target, replacement, entry.symbol(), publish) } {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.reason, detour::Reason::AlreadyInstalled { .. }) => Ok(false),
        Err(e) => Err(e.to_string()),
    }
}
