//! `mosaic run`: an unmodified program under a role.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::{Args, ValueEnum};

use super::python;

/// `mosaic run` itself failed, before the program; as env(1).
const EXIT_SELF: u8 = 125;
/// In the package: its folder is put first on PYTHONPATH.
const STARTUP: &str = "_startup";
/// For programs that are not Python; it steps aside in those that are.
const ENGINE: &str = "libmosaic_engine.so";

/// Run a program under a role, default stream included.
///
/// The exit code is the program's, or 125 if mosaic failed before it, 126 if it could not be run, 127 if it was not
/// found.
#[derive(Debug, Args)]
pub struct Run {
    /// hp: latency-critical; be: best effort.
    #[arg(long)]
    role: Role,
    /// HP's bound on p99 over isolated p99 [default: 1.1].
    #[arg(long, value_name = "RATIO", value_parser = slo)]
    slo: Option<f64>,
    /// Name in stats and doctor [default: the program's].
    #[arg(long)]
    name: Option<String>,
    /// The folder of mosaic_torch, if it is not found.
    #[arg(long, value_name = "DIR")]
    package: Option<PathBuf>,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Hp,
    Be,
}

fn slo(text: &str) -> Result<f64, String> {
    let ratio = text.parse().map_err(|_| "expected a ratio such as 1.1".to_owned())?;
    if (1.0..=100.0).contains(&ratio) { Ok(ratio) } else { Err("expected a ratio from 1 to 100, such as 1.1".into()) }
}

impl Run {
    pub fn run(self) -> ExitCode {
        let Some((program, arguments)) = self.command.split_first() else {
            return super::fail(EXIT_SELF, "no program given: put it after `--`");
        };
        let environment = match self.environment(program, arguments) {
            Ok(environment) => environment,
            Err(e) => return super::fail(EXIT_SELF, e),
        };
        let mut command = Command::new(program);
        command.args(arguments);
        for (key, value) in environment {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        super::become_command(&mut command)
    }

    fn environment(&self, program: &OsStr, arguments: &[OsString]) -> Result<Environment, RunError> {
        if self.role == Role::Be && self.slo.is_some() {
            return Err(RunError::SloOfBe);
        }
        if self.name.as_ref().is_some_and(|n| n.trim().is_empty() || n.contains('\0')) {
            return Err(RunError::Name);
        }
        let is_python = python::is_python(program);
        if is_python && let Some(option) = isolating_option(arguments) {
            return Err(RunError::Isolated { option });
        }
        let package = self.package.clone().or_else(|| {
            // The program's own Python is the one whose package must fit.
            let mut pythons = python::candidates();
            pythons.splice(..0, is_python.then(|| program.to_owned()));
            python::package_dir(&pythons)
        });
        let startup = package.as_ref().map(|p| p.join(STARTUP)).filter(|p| p.is_dir());
        let engine = engine(package.as_deref());
        // A shell script may start either kind, so one of the two is enough there.
        let missing = if is_python { startup.is_none() } else { startup.is_none() && engine.is_none() };
        if missing {
            return Err(RunError::NoPackage { looked: package });
        }
        let role = if self.role == Role::Hp { "hp" } else { "be" };
        let mut changes: Environment = vec![
            ("MOSAIC_ROLE", Some(role.into())),
            ("MOSAIC_SLO", self.slo.map(|s| s.to_string().into())),
            ("MOSAIC_NAME", self.name.as_ref().map(Into::into)),
        ];
        if let Some(startup) = startup {
            changes.push(("PYTHONPATH", Some(prepend(&startup, "PYTHONPATH", b":")?)));
        }
        if let Some(engine) = engine {
            changes.push(("LD_PRELOAD", Some(prepend(&engine, "LD_PRELOAD", b": ")?)));
        }
        Ok(changes)
    }
}

/// Variables to set, or to remove: a role from outside must not mix with this one.
type Environment = Vec<(&'static str, Option<OsString>)>;

/// In the package, or beside this program in a build tree.
fn engine(package: Option<&Path>) -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|exe| exe.parent().map(|dir| dir.join(ENGINE)));
    package.map(|p| p.join(ENGINE)).into_iter().chain(beside).find(|p| p.is_file())
}

/// The value with `path` first; `separators` may not stand in a path, and there is no way to quote them.
fn prepend(path: &Path, variable: &'static str, separators: &[u8]) -> Result<OsString, RunError> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if path.as_os_str().as_bytes().iter().any(|b| separators.contains(b)) {
        return Err(RunError::Separator { path, variable });
    }
    let mut value = path.into_os_string();
    if let Some(old) = env::var_os(variable).filter(|v| !v.is_empty()) {
        value.push(":");
        value.push(old);
    }
    Ok(value)
}

/// Python's own option that keeps sitecustomize or PYTHONPATH from being read, if it is given.
fn isolating_option(arguments: &[OsString]) -> Option<char> {
    let mut arguments = arguments.iter().filter_map(|a| a.to_str());
    while let Some(options) = arguments.next().and_then(|a| a.strip_prefix('-')).filter(|o| !o.is_empty()) {
        if options.starts_with('-') {
            continue;
        }
        for (at, option) in options.char_indices() {
            match option {
                'I' | 'E' | 'S' => return Some(option),
                // The rest is the program and its own arguments.
                'c' | 'm' => return None,
                // These take a value: the rest of the word, or the next one.
                'W' | 'X' => {
                    if at + 1 == options.len() {
                        arguments.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

/// Why a program was not run.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
enum RunError {
    /// A bound for a job that has none.
    SloOfBe,
    /// A name that is none.
    Name,
    /// Python was told not to read what the role needs.
    Isolated { option: char },
    /// Nothing to put the program under a role with.
    NoPackage { looked: Option<PathBuf> },
    /// A path that the variable cannot hold.
    Separator { path: PathBuf, variable: &'static str },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SloOfBe => write!(f, "--slo is HP's bound and the role is be: leave it out"),
            Self::Name => write!(f, "the name is blank or holds a zero byte: give another or leave --name out"),
            Self::Isolated { option } => write!(
                f,
                "python -{option} does not read PYTHONPATH or sitecustomize, so the role would not apply: leave -{option} \
                 out, or import mosaic_torch in the program"
            ),
            Self::NoPackage { looked: Some(dir) } => write!(
                f,
                "{} holds neither {STARTUP} nor {ENGINE} that this program needs: install mosaic_torch again",
                dir.display()
            ),
            Self::NoPackage { looked: None } => write!(
                f,
                "mosaic_torch was not found beside this program or by Python: activate its environment, or name its \
                 folder with --package"
            ),
            Self::Separator { path, variable } => write!(
                f,
                "{variable} cannot hold the path {:?}: install mosaic_torch where the path has no colon or space",
                path.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests;
