//! The log while a test looks.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// Lines of a log, in the order in which they were written.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects what the process logs from now on; each test has a process of its own.
    pub fn of_process(level: Level) -> Log {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(log.clone());
        subscriber.finish().try_init().expect("the only subscriber");
        log
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Does something, and answers what this thread has logged meanwhile.
pub async fn logged<T>(level: Level, work: impl Future<Output = T>) -> (T, String) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(log.clone());
    let held = tracing::subscriber::set_default(subscriber.finish());
    let done = work.await;
    drop(held);
    (done, log.text())
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}
