//! A Redis to talk to as a foreign service would, and servers of a test's own that it may stop and start.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use reveille::ports::bus::Settings;

use super::binary::TempDir;
use super::servers;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// An entry that is held for so long is someone else's: longer than the machine holds a test up.
pub const STALLED: Duration = Duration::from_secs(2);

/// Makes all that is held of one stream so old, if it has the group. `JUSTID` keeps the count of deliveries; what was
/// deleted is forgotten.
const AGE: &str = "
    local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 1000)
    if held.err then return held.err:match('NOGROUP') and nil or held end
    for _, entry in ipairs(held) do
        redis.call('XCLAIM', KEYS[1], ARGV[1], entry[2], 0, entry[1], 'IDLE', ARGV[2], 'JUSTID')
    end";

/// Makes all that consumers of this bus hold as old as what is stalled, and waits until each would look for it.
pub async fn stall(bus: &Settings) {
    let redis = Redis::at(bus.url.expose());
    let age = bus.stalled_after().as_millis().to_string();
    for partition in 0..bus.partitions {
        let stream = format!("{}:{partition}", bus.stream_prefix);
        assert_eq!(redis.ask(&["EVAL", AGE, "1", &stream, &bus.group, &age]), "", "{stream}");
    }
    pause(bus.stalled_after() / 4).await;
}

/// Speaks the protocol of `redis-cli`.
pub struct Redis {
    port: String,
}

impl Redis {
    /// At an address such as `redis://127.0.0.1:6379`.
    pub fn at(url: &str) -> Redis {
        let (_, port) = url.rsplit_once(':').expect("an address with a port");
        Redis { port: port.to_owned() }
    }

    /// One command, as `redis-cli` would print its answer.
    pub fn ask(&self, words: &[&str]) -> String {
        let asked = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &self.port]).args(words).output();
        let asked = asked.expect("redis-cli runs");
        let answer = String::from_utf8_lossy(&asked.stdout).trim_end().to_owned();
        assert!(!answer.starts_with("ERR") && asked.status.success(), "{words:?}: {answer}");
        answer
    }

    /// The answer as a number.
    pub fn number(&self, words: &[&str]) -> i64 {
        self.ask(words).parse().unwrap_or_else(|_| panic!("{words:?} answers no number: {}", self.ask(words)))
    }
}

/// A Redis of a test's own; ends with it. Its files stay as long as it.
pub struct RedisServer {
    pub port: u16,
    arguments: Vec<String>,
    dir: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// With an append-only file that is synced at each write, and these arguments after that.
    pub fn start(arguments: &[&str]) -> RedisServer {
        let port = servers::lasting_port();
        let arguments = arguments.iter().map(|word| word.to_string()).collect();
        let mut server = RedisServer { port, arguments, dir: TempDir::new(), child: None };
        server.start_again();
        server
    }

    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let mut command = Command::new("redis-server");
        if let Some(file) = self.sentinel_file() {
            command.arg(file).arg("--sentinel");
        } else {
            command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
            command.args(["--maxmemory-policy", "noeviction"]);
        }
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.arg("--dir").arg(self.dir.path());
        if self.sentinel_file().is_none() {
            command.args(&self.arguments);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("redis-server runs");
        self.child = Some(child);
        let begun = Instant::now();
        while !self.answers() {
            assert!(begun.elapsed() < PATIENCE, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sentinels want a file that they may write: `arguments` are its lines when the first is `sentinel`.
    fn sentinel_file(&self) -> Option<PathBuf> {
        let lines = self.arguments.strip_prefix(&["sentinel".to_owned()])?;
        let file = self.dir.path().join("sentinel.conf");
        if !file.exists() {
            std::fs::write(&file, lines.join("\n")).expect("the sentinel's file");
        }
        Some(file)
    }

    fn answers(&self) -> bool {
        let asked = Command::new("redis-cli").args(["-p", &self.port.to_string(), "ping"]).output();
        asked.is_ok_and(|asked| asked.stdout.starts_with(b"PONG"))
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends as `kill -9` ends it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
