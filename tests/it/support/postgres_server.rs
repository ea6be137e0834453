//! A PostgreSQL of a test's own, that it may crash, start again, and give too small a disk. It goes with the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection, Executor, PgConnection};

use super::binary::TempDir;
use super::servers;

/// How long a start or a recovery may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct PostgresServer {
    pub port: u16,
    dir: TempDir,
    programs: PathBuf,
    /// User that runs it: not root.
    user: Option<&'static str>,
    /// Its files are on a disk of their own of so many MiB, which nobody else sees.
    disk: Option<u32>,
    /// Its environment, besides ours.
    environment: Vec<(String, String)>,
}

impl PostgresServer {
    /// With fsync on, and a role `reveille` without privileges.
    pub async fn start() -> PostgresServer {
        PostgresServer::start_with(&[]).await
    }

    /// Starts the server with more in its environment.
    pub async fn start_with(environment: &[(&str, String)]) -> PostgresServer {
        PostgresServer::make(None, environment).await.expect("no disk is asked for")
    }

    /// On a disk of so many MiB in a private mount namespace; `None` where that is refused.
    pub async fn start_on_disk(mebibytes: u32) -> Option<PostgresServer> {
        let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
        match may.is_ok_and(|may| may.success()) {
            true => PostgresServer::make(Some(mebibytes), &[]).await,
            false => None,
        }
    }

    async fn make(disk: Option<u32>, environment: &[(&str, String)]) -> Option<PostgresServer> {
        let found = Command::new("sh").args(["-c", "command -v initdb"]).output().expect("sh runs");
        // where it really is the others are, too
        let initdb = std::fs::canonicalize(String::from_utf8_lossy(&found.stdout).trim())
            .expect("scripts/test.sh puts PostgreSQL's programs into PATH");
        let programs = initdb.parent().expect("a folder").to_owned();
        let port = servers::lasting_port();
        let user = rustix::process::getuid().is_root().then_some("postgres");
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let server = PostgresServer { port, dir: TempDir::new(), programs, user, disk, environment };
        let data = server.data();
        std::fs::create_dir(&data).expect("make a directory");
        if let Some(user) = user {
            let owned = Command::new("chown").arg(user).arg(&data).status().expect("chown runs");
            assert!(owned.success(), "chown {user}");
        }
        let initdb = format!("{} -D {} -U owner -A trust -N -E UTF8 --locale=C", server.program("initdb"), show(&data));
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\nmax_connections = 100\n\
             shared_buffers = 32MB\nmin_wal_size = 32MB\nmax_wal_size = 48MB\nlog_min_messages = warning\n"
        );
        std::fs::write(server.dir.path().join("postgresql.conf"), settings).expect("its settings");
        let conf = format!("cat {}/postgresql.conf > {}/postgresql.conf", show(server.dir.path()), show(&data));
        if let Some(mebibytes) = disk {
            // whoever starts it lives in that namespace, and so does it
            let owner = user.map_or(String::new(), |user| format!(" && chown {user} {}", show(&data)));
            let mount = format!("mount -t tmpfs -o size={mebibytes}m,mode=700 tmpfs {}{owner}", show(&data));
            let keeper = format!("{mount} && touch {0}/mounted && exec sleep 600", show(server.dir.path()));
            #[allow(clippy::zombie_processes)] // it is ended with the server, by its id
            let mut keeper = Command::new("unshare").args(["-m", "sh", "-c", &keeper]).spawn().expect("unshare runs");
            let begun = Instant::now();
            while !server.dir.path().join("mounted").exists() {
                if keeper.try_wait().expect("its state").is_some() || begun.elapsed() > PATIENCE {
                    let _ = keeper.kill();
                    let _ = keeper.wait();
                    return None;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            std::fs::write(server.dir.path().join("keeper"), keeper.id().to_string()).expect("who keeps the disk");
        }
        server.shell(&format!("{initdb} && {conf}"), true);
        server.start_again();
        let mut owner = server.owner("postgres").await;
        owner.execute("create role reveille login createdb nosuperuser nobypassrls").await.expect("a role");
        owner.execute("create database service owner reveille").await.expect("a database");
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn program(&self, name: &str) -> String {
        show(&self.programs.join(name))
    }

    /// A line as the server's user, where its disk is seen.
    fn line(&self, line: &str) -> Command {
        let mut words: Vec<String> = Vec::new();
        if self.disk.is_some() {
            let keeper = std::fs::read_to_string(self.dir.path().join("keeper")).expect("who keeps the disk");
            words.extend(["nsenter".into(), "-t".into(), keeper, "-m".into(), "--".into()]);
        }
        if let Some(user) = self.user {
            words.extend(["runuser", "-u", user, "--"].map(str::to_owned));
        }
        words.extend(["sh".into(), "-c".into(), line.into()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir("/");
        command
    }

    /// Runs it.
    fn shell(&self, line: &str, must: bool) -> bool {
        // the log of a server that is to be read goes to a file, and nothing keeps our output open
        let done = self.line(line).stdout(Stdio::null()).output().expect("a shell");
        assert!(done.status.success() || !must, "{line}: {}", String::from_utf8_lossy(&done.stderr));
        done.status.success()
    }

    /// `postgres://…` as the role of the service.
    pub fn url(&self) -> String {
        format!("postgres://reveille@127.0.0.1:{}/service", self.port)
    }

    async fn owner(&self, database: &str) -> PgConnection {
        let url = format!("postgres://owner@127.0.0.1:{}/{database}", self.port);
        PgConnection::connect(&url).await.expect("connect to a server of the test's own")
    }

    /// Ends as a crash ends it: nothing is written any more, and a recovery follows at the next start.
    pub fn crash(&self) {
        self.shell(&format!("{} -D {} -m immediate -s stop", self.program("pg_ctl"), show(&self.data())), true);
    }

    /// Starts, and recovers what is to be recovered.
    pub fn start_again(&self) {
        self.shell(&self.start_line(), true);
    }

    fn start_line(&self) -> String {
        let data = show(&self.data());
        let with: String = self.environment.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        // the server would keep the pipe of our output open
        format!("{with}{} -D {data} -l {data}/log -w -s start >/dev/null 2>&1", self.program("pg_ctl"))
    }

    /// Fills its disk to the last byte; it has one of its own.
    pub fn fill_disk(&self) {
        assert!(self.disk.is_some(), "only a disk of its own is filled");
        let data = show(&self.data());
        self.shell(&format!("dd if=/dev/zero of={data}/filler bs=64k 2>/dev/null; dd if=/dev/zero of={data}/rest bs=1 count=65536 2>/dev/null"), false);
    }

    /// How full its disk is, and the end of its log.
    fn log_tail(&self) -> String {
        let said = self.line(&format!("df -m {0}; tail -c 3000 {0}/log", show(&self.data()))).output();
        said.map_or_else(|error| error.to_string(), |said| String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// Makes room again, and starts it if it gave up meanwhile.
    pub fn free_disk(&self) {
        let data = show(&self.data());
        self.shell(&format!("rm -f {data}/filler {data}/rest"), true);
        let begun = Instant::now();
        while !self.shell(&format!("{} -q -h 127.0.0.1 -p {}", self.program("pg_isready"), self.port), false) {
            assert!(begun.elapsed() < PATIENCE, "it does not come back: {}", self.log_tail());
            if !self.shell(&format!("{} -D {data} status", self.program("pg_ctl")), false) {
                self.shell(&self.start_line(), false);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.shell(&format!("{} -D {} -m immediate -s stop", self.program("pg_ctl"), show(&self.data())), false);
        // its files are not ours to remove, if it has a user of its own: we are root then
        let _ = std::fs::read_to_string(self.dir.path().join("keeper"))
            .map(|keeper| Command::new("kill").arg(keeper).status());
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
