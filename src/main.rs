//! The binary: reads the command line, does what it says, and turns a failure into a message and an exit code.

use std::process::ExitCode;

use clap::Parser;
use reveille::base::threads;
use reveille::cli::{self, Cli};
use reveille::config::Environment;

/// Events are small pieces of JSON, thousands a second: the system's allocator took a fifth of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if let Err(error) = cli::keep_private() {
        eprintln!("warning: core dumps could not be turned off: {error}");
    }
    let cli = Cli::parse();
    // one provider for all TLS; a second call would only say that it is there
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(threads::STACK).build();
    let done = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let done = runtime.block_on(cli::run(cli, &Environment::of_process()));
        runtime.shutdown_background(); // a blocked read of standard input must not hold the exit up
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cli::report(&error),
    }
}
