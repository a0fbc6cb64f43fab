//! The `postroad` program: parse the command line, run the command, say what came of it.

/// Large buffers come and go with every read: the system's allocator returns their pages each time and asks for them again,
/// which was more than a tenth of what a transfer costs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    // The first touch of a huge page clears 2 MiB, after the kernel has perhaps made room: packets waited for 150 ms and more
    // where several came in a row. A kernel without huge pages refuses this, and there is nothing to turn off.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    postroad::cli::main()
}
