//! The threads of the hostile tenants' own programs: those that ask and read, and those that answer where the service
//! calls them.
//!
//! Elsewhere they have machines of their own. Here they share the processors with the service, so they run when no
//! other thread wants to.

use std::io;

use rustix::process::setpriority_process;
use tokio::runtime::{Builder, Handle, Runtime};

/// The name of each of the threads, as the system knows it.
pub const NAME: &str = "hostile";
/// The niceness of a thread that comes behind all others.
const LAST: i32 = 19;

/// A runtime of such threads. What runs on it is left where it is when this is dropped.
pub struct ClientThreads(Option<Runtime>);

impl ClientThreads {
    /// With as many threads as the machine has processors.
    pub fn start() -> io::Result<ClientThreads> {
        let runtime = Builder::new_multi_thread().enable_all().thread_name(NAME).on_thread_start(run_last).build()?;
        Ok(ClientThreads(Some(runtime)))
    }

    /// The way to run tasks on them.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("a runtime that is there until it is dropped").handle()
    }
}

impl Drop for ClientThreads {
    fn drop(&mut self) {
        // it is dropped where nothing may block
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lets the calling thread run behind all others, for good.
fn run_last() {
    // Linux has a priority for each thread; elsewhere this would be that of the whole process
    if cfg!(target_os = "linux") {
        let _ = setpriority_process(None, LAST);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[tokio::test]
    async fn clients_alone_run_behind_all_others() {
        let before = getpriority_process(None).unwrap();
        let clients = ClientThreads::start().unwrap();
        let seen = async { (getpriority_process(None).unwrap(), std::thread::current().name().map(str::to_owned)) };
        let (priority, name) = clients.handle().spawn(seen).await.unwrap();
        let expected = if cfg!(target_os = "linux") { LAST } else { before };
        assert_eq!((priority, name.as_deref()), (expected, Some(NAME)));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
