//! Finds a Python and the package in it, without importing torch.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where the installed `mosaic_torch` and torch lie, a line each; looking a package up does not run it.
const LOCATE: &str = "
import importlib.util, os, sys
for name in sys.argv[1:]:
    s = importlib.util.find_spec(name)
    sys.stdout.buffer.write(os.fsencode((s and s.submodule_search_locations or [''])[0]) + b'\\n')
";

/// What one Python has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packages {
    /// The folder of `mosaic_torch`.
    pub mosaic_torch: Option<PathBuf>,
    /// The folder of torch.
    pub torch: Option<PathBuf>,
}

/// Asks a Python; nothing if it cannot be run.
pub fn packages(python: &OsStr) -> Packages {
    let output = Command::new(python)
        .args(["-c", LOCATE, "mosaic_torch", "torch"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(o) if o.status.success() => parse(&o.stdout),
        _ => Packages::default(),
    }
}

fn parse(stdout: &[u8]) -> Packages {
    let mut lines = stdout
        .split(|b| *b == b'\n')
        .map(|l| Some(l).filter(|l| !l.is_empty()).map(|l| PathBuf::from(OsString::from_vec(l.to_vec()))));
    Packages { mosaic_torch: lines.next().flatten(), torch: lines.next().flatten() }
}

/// The Pythons to ask, best first: the activated environment's, the one installed beside this program, those on PATH.
pub fn candidates() -> Vec<OsString> {
    let in_venv = env::var_os("VIRTUAL_ENV").map(|v| Path::new(&v).join("bin/python"));
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(|dir| dir.join("python")));
    let mut found: Vec<OsString> =
        [in_venv, beside].into_iter().flatten().filter(|p| p.exists()).map(PathBuf::into_os_string).collect();
    found.extend(["python".into(), "python3".into()]);
    found
}

/// Why no Python has both packages.
#[derive(Debug)]
pub enum Missing {
    /// None has `mosaic_torch`.
    Package { asked: Vec<OsString> },
    /// One has it, in this folder, and no torch.
    Torch { beside: PathBuf },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Package { asked } => {
                let asked: Vec<_> = asked.iter().map(|p| p.to_string_lossy()).collect();
                write!(f, "no Python with mosaic_torch (asked {})", asked.join(", "))
            }
            Missing::Torch { beside } => write!(f, "mosaic_torch is installed ({}) and torch is not", beside.display()),
        }
    }
}

/// The first Python that has `mosaic_torch` and torch.
pub fn with_torch(pythons: Vec<OsString>) -> Result<OsString, Missing> {
    let mut without_torch = None;
    for python in &pythons {
        match packages(python) {
            Packages { mosaic_torch: Some(_), torch: Some(_) } => return Ok(python.clone()),
            Packages { mosaic_torch: Some(beside), torch: None } => without_torch = Some(Missing::Torch { beside }),
            _ => {}
        }
    }
    Err(without_torch.unwrap_or(Missing::Package { asked: pythons }))
}

/// Whether a program's name is an interpreter's: python, python3, python3.12, pypy3.
pub fn is_python(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let version = name.strip_prefix("python").or(name.strip_prefix("pypy"));
    version.is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// The package's folder: beside this program (an installed environment, `pip install --target`, a source tree), or
/// where one of `pythons` finds it.
pub fn package_dir(pythons: &[OsString]) -> Option<PathBuf> {
    let exe = env::current_exe().ok();
    exe.and_then(|exe| beside(&exe)).or_else(|| pythons.iter().find_map(|p| packages(p).mosaic_torch))
}

fn beside(exe: &Path) -> Option<PathBuf> {
    let prefix = exe.parent()?.parent()?;
    let libs = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    let mut places: Vec<PathBuf> = libs.map(|e| e.path().join("site-packages/mosaic_torch")).collect();
    places.push(prefix.join("mosaic_torch"));
    // target/release/mosaic and target/debug/mosaic of a source tree.
    places.extend(prefix.parent().map(|tree| tree.join("python/mosaic_torch")));
    places.into_iter().find(|p| p.join("__init__.py").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_told_from_other_programs() {
        for python in ["python", "python3", "/usr/bin/python3.12", "pypy3"] {
            assert!(is_python(OsStr::new(python)), "{python}");
        }
        for other in ["pythonw-tool", "ipython", "serve", "python-config", "", "/"] {
            assert!(!is_python(OsStr::new(other)), "{other}");
        }
    }

    #[test]
    fn a_package_that_is_missing_is_an_empty_line() {
        // Guards against torch's folder being taken for mosaic_torch's.
        let both = parse(b"/a/mosaic_torch\n/a/torch\n");
        assert_eq!(both.torch.as_deref(), Some(Path::new("/a/torch")));
        assert_eq!(parse(b"\n/a/torch\n"), Packages { mosaic_torch: None, torch: Some("/a/torch".into()) });
        assert_eq!(parse(b""), Packages::default());
    }

    /// Fault: a search that fails and does not say where it looked.
    #[test]
    fn without_a_python_the_error_says_who_was_asked() {
        let error = with_torch(vec!["/nonexistent/python".into(), "false".into()]).unwrap_err();
        assert_eq!(error.to_string(), "no Python with mosaic_torch (asked /nonexistent/python, false)");
    }

    #[test]
    fn a_program_that_is_no_python_has_no_packages() {
        assert_eq!(packages(OsStr::new("/nonexistent/python")), Packages::default());
        assert_eq!(packages(OsStr::new("false")), Packages::default());
    }
}
