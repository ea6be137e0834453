//! The real binary as its own process: started on a free port, read, killed, started again.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use reveille::base::clock;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// How long a start or a stop may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often its log is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A directory that goes with its owner.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        let path = std::env::temp_dir().join(format!("reveille-it-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&path).expect("make a temporary directory");
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `reveille serve` with a directory and settings of its own. The settings stay over restarts, the port does not.
pub struct Service {
    pub dir: TempDir,
    settings: Vec<(String, String)>,
    /// The token that the first start printed; later ones know it and print nothing.
    admin_token: Option<String>,
    running: Option<ServiceProcess>,
}

struct ServiceProcess {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    address: String,
    /// Everything it printed until it was ready.
    announced: String,
}

impl Service {
    /// A service that is not running yet, on SQLite in its own directory.
    pub fn new() -> Service {
        Service { dir: TempDir::new(), settings: Vec::new(), admin_token: None, running: None }
    }

    /// Sets one environment variable for every start, such as `("REVEILLE_DATABASE__URL", url)`.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Service {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The text of `reveille.toml` in the service's directory, which is where it is started.
    pub fn with_config(self, toml: &str) -> Service {
        std::fs::write(self.dir.path().join("reveille.toml"), toml).expect("write reveille.toml");
        self
    }

    /// Starts it and returns once it answers: it prints its address only then.
    ///
    /// # Panics
    /// If it ends, or says nothing within a minute; what it logged is in the message.
    pub async fn start(&mut self) -> &str {
        self.start_at("127.0.0.1:0").await
    }

    /// Starts it at an address that it may have again.
    ///
    /// # Panics
    /// As [`Service::start`].
    pub async fn start_at(&mut self, listen: &str) -> &str {
        assert!(self.running.is_none(), "the service is running");
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).expect("open the log");
        let mut child = self
            .command()
            .args(["serve", "--listen", listen])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("start the binary");
        let stdout = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let mut running = ServiceProcess { child, stdout, address: String::new(), announced: String::new() };
        let answered = timeout(PATIENCE, running.read_until_ready()).await;
        assert_eq!(answered, Ok(true), "the service did not start; it logged:\n{}", self.log());
        if let Some(line) = running.announced.lines().find_map(|line| line.strip_prefix("admin token  in ")) {
            let file = line.split("  ").next().expect("its name");
            let token = std::fs::read_to_string(self.dir.path().join(file)).expect("the file of the admin token");
            self.admin_token = Some(token.trim().to_owned());
        }
        &self.running.insert(running).address
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.running().address
    }

    /// The admin token of the first start, from the file that it named.
    pub fn admin_token(&self) -> Option<&str> {
        self.admin_token.as_deref()
    }

    /// The text that this start printed until it was ready.
    pub fn announced(&self) -> &str {
        &self.running().announced
    }

    pub fn process_id(&self) -> u32 {
        self.running().child.id().expect("a running process")
    }

    /// `kill -9`: no destructor runs, nothing is flushed.
    pub async fn kill(&mut self) {
        let mut running = self.running.take().expect("a running service");
        running.child.kill().await.expect("kill -9");
    }

    /// SIGABRT, as a fault of the process itself would: its exit status, and what it printed since it was ready.
    pub async fn abort(&mut self) -> (ExitStatus, String) {
        let mut running = self.running.take().expect("a running service");
        signal("ABRT", running.child.id().expect("a running process")).await;
        let ended =
            timeout(PATIENCE, running.child.wait()).await.expect("it ends after SIGABRT").expect("its exit status");
        let mut printed = String::new();
        while let Ok(Some(line)) = running.stdout.next_line().await {
            printed.push_str(&line);
            printed.push('\n');
        }
        (ended, printed)
    }

    /// SIGTERM, and its exit status once it has ended by itself.
    pub async fn terminate(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("a running service");
        signal("TERM", running.child.id().expect("a running process")).await;
        timeout(PATIENCE, running.child.wait()).await.expect("it ends after SIGTERM").expect("its exit status")
    }

    /// Its exit status once it has ended, for whatever reason.
    pub async fn ended(&mut self) -> ExitStatus {
        self.running.take().expect("a running service").child.wait().await.expect("its exit status")
    }

    /// Returns once this stands in its log.
    pub async fn until_logged(&self, text: &str) {
        while !self.log().contains(text) {
            clock::pause(LOOK).await;
        }
    }

    /// The log of all starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The binary in this service's directory with this service's settings, and nothing else from the environment.
    pub fn command(&self) -> Command {
        let mut command = reveille(self.dir.path());
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command
    }

    fn running(&self) -> &ServiceProcess {
        self.running.as_ref().expect("a running service")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("stderr.log")
    }
}

impl ServiceProcess {
    /// Reads on until `listening on http://…`; false when the output ends before.
    async fn read_until_ready(&mut self) -> bool {
        while let Ok(Some(line)) = self.stdout.next_line().await {
            self.announced.push_str(&line);
            self.announced.push('\n');
            if let Some(address) = line.split_whitespace().find(|word| word.starts_with("http://"))
                && line.contains("listening")
            {
                self.address = address.to_owned();
                return true;
            }
        }
        false
    }
}

/// The binary, started in `dir` with an environment that holds nothing but a PATH.
pub fn reveille(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reveille"));
    command.current_dir(dir).env_clear().env("PATH", "/usr/bin:/bin").env("RUST_BACKTRACE", "1");
    command
}

/// Sends a signal by name, as a person would.
pub async fn signal(name: &str, process_id: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process_id.to_string()]).status().await;
    assert!(sent.expect("run kill").success(), "kill -{name} {process_id}");
}
