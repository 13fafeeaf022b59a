//! The command `mosaic`. It needs neither torch nor CUDA; what needs them runs the environment's Python.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
