//! The `postroad` program: parse the command line, run the command, say what came of it.

fn main() -> std::process::ExitCode {
    postroad::cli::main()
}
