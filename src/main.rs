//! The `postroad` program: parse the command line, run the command, say what came of it.

/// Large buffers come and go with every read: the system's allocator returns their pages each time and asks for them again, which was more than a tenth of what a transfer costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    postroad::cli::main()
}
