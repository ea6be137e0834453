//! The binary: nothing but the allocator. All else is compiled once, with the library.

use std::process::ExitCode;

/// Events are small pieces of JSON, thousands a second: the system's allocator took a fifth of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    reveille::cli::main()
}
