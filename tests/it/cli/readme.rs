//! The README, done as it stands there: its files are saved, its commands are typed, and what they print is what it
//! shows.
//!
//! The blocks of the page are taken one after another, so that a new one is done or passed over with a reason, or this
//! fails. Of what is printed only ids, tokens and instants may differ, and lines that the page leaves out with `…`.

mod compare;
mod page;
mod world;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use compare::Names;
use page::{Block, Step, blocks};
use reveille::base::clock::pause;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use world::{Places, ReadmeHarness, Server, replace};

use crate::support::binary::{TempDir, signal};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
/// How long something may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// Where the copy that is tested differs from the page, so that nothing waits for a minute of the clock or for long.
const OTHERWISE: [(&str, &str); 4] = [
    // it fires when it is asked to
    (r#""cron": "* * * * *""#, r#""cron": "@yearly""#),
    (r#""cron":"* * * * *""#, r#""cron":"@yearly""#),
    (r#""interval": "5s""#, r#""interval": "1s""#),
    ("every 5s: ", "every 1s: "),
];

#[tokio::test]
async fn readme_is_what_its_commands_print() {
    let mut reader = Reader::open().await;
    reader.pass_over("sh", "cargo run --release", "builds a release; cli::demo runs the demo, and CI the script");
    reader.save("toml", "[llm.models.main]", "reveille.toml");
    // the usual port may be somebody's
    let port = reader.world.service_port;
    reader.add_to_the_configuration(&format!("[server]\nlisten = \"127.0.0.1:{port}\"\n"));
    let mails = reader.serve_by("sh", "/usr/bin/python3 -m aiosmtpd", reader.world.mail_port).await;
    reader.console("reveille check").await;

    // a first task
    reader.console("export REVEILLE_TOKEN=").await;
    reader.console("reveille task create --tenant ann --name 'Week ahead'").await;
    reader.quietly("reveille task run $(reveille task list --query 'Good morning' --json | grep -o '[0-9a-f-]\\{36\\}' | head -1)").await;
    reader.console("reveille run list --state succeeded").await;
    reader.mail("From: Reveille", &mails).await;
    reader.console("reveille run show").await;
    reader.console("reveille schedule preview").await;

    // models
    reader.pass_over("toml", "[llm]", "needs keys of providers; cli::check builds its models");
    reader.configure("[encoders.").await;
    reader.pass_over("toml", "[verifiers.rules.C-0100]", "agent::verifiers has answers that break such rules");
    reader.pass_over("rust", "let app = App::builder()", "stands in a program that `examples` runs and compares");
    reader.console("reveille chat --tenant ann").await;
    reader.pass_over("python", "from openai", "clients has a program of that client");
    reader.configure("[[agents]]").await;
    reader.console("reveille chat --tenant ann 'When can I meet").await;
    reader.configure("[llm.models.small]").await;
    reader.console("reveille chat --tenant ann 'I sit").await;
    reader.configure("[llm.models.embedder]").await;
    reader.until("reveille check", "answers; `nomic-embed-text`").await;
    reader.save("markdown", "---", "skills/expense-report/SKILL.md");
    reader.console("reveille skill check").await;
    reader.configure("[skills]").await;
    reader.console("reveille chat --tenant ann 'My receipts").await;
    reader.pass_over(
        "toml",
        "[budgets.run]",
        "the model of this page has no price; engine::budgets has runs with budgets",
    );

    // events and pipelines
    reader.save("json", "{", "order.json");
    reader.console("echo ").await;
    reader.console("reveille task create --file order.json").await;
    // what the embedded bus has is handled before the service starts again with another one
    reader.mailed("Order A-7 over 120 (large order no. 1)", &mails).await;
    reader.configure("[bus]").await;
    reader.console("redis-cli ").await;
    reader.console("reveille run list").await;
    reader.mailed("Order A-8 over 999 (large order no. 2)", &mails).await;

    // conditions
    reader.configure("[egress]").await;
    let price = |price: u32| format!("{{\"price\": {price}}}\n");
    let shop = reader.dir.path().join("shop");
    std::fs::create_dir(&shop).unwrap();
    replace(&shop.join("flight.json"), &price(612), 0);
    assert!(reader.page.contains("`python3 -m http.server 8099`"), "the shop");
    let port = reader.world.shop_port;
    let _shop = Server::start(&reader.places.here("/usr/bin/python3 -m http.server 8099"), &shop, port).await;
    reader.console("reveille condition test").await;
    reader.save("json", "{", "cheap-flight.json");
    let create = reader.next("console", "reveille task create --file cheap-flight.json");
    reader.steps(&create.steps()[..1]).await;
    reader.until("reveille task list --trigger-type condition --json", "\"price\": 612").await;
    for (price_now, minute) in [(480, 1), (470, 2)] {
        replace(&shop.join("flight.json"), &price(price_now), minute);
        reader.until("reveille task list --trigger-type condition --json", &format!("\"price\": {price_now}")).await;
    }
    reader.steps(&create.steps()[1..]).await;
    reader.mailed("The flight costs 480 now, it was 612.", &mails).await;

    // approvals
    reader.configure("[approvals.tools.http_send]").await;
    reader.pass_over(
        "sh",
        "reveille override set",
        "sets what the block before it says; it is typed once the record is counted",
    );
    reader.console("reveille task create --tenant ann --name Office").await;
    reader.console("reveille audit verify").await;
    let when = "args.url == 'https://notes.example.org/office'";
    reader.quietly(&format!("reveille override set http_send auto --tenant ann --for 7d --when \"{when}\"")).await;
    reader.until("reveille override list --tenant ann", "http_send").await;
    let id = r#"$(reveille override list --json | grep -o '"id": *"[0-9a-f-]*' | grep -o '[0-9a-f-]*$')"#;
    reader.quietly(&format!("reveille override remove {id}")).await;

    // credentials
    reader.console("pass show shop").await;
    reader.configure("[[tools]]").await;
    reader.change_the_master_key().await;
    reader.console("reveille credential rotate-key").await;
    reader.pass_over("js", "self.addEventListener('push'", "is for a browser's service worker");

    // tasks in files
    reader.save("toml", "trigger = { type = \"schedule\"", "tasks/reports/daily.toml");
    reader.apply_and_edit().await;
    reader.console("reveille task apply").await;
    reader.console("reveille task export").await;
    reader.end().await;
}

/// Somebody who reads the page from its top, and does what it says.
struct Reader {
    page: String,
    world: ReadmeHarness,
    places: Places,
    dir: TempDir,
    blocks: std::vec::IntoIter<Block>,
    names: Names,
    environment: Vec<(String, String)>,
    service: Option<Child>,
    differences: String,
}

impl Reader {
    async fn open() -> Reader {
        let (world, dir) = (ReadmeHarness::start().await, TempDir::new());
        let places = world.places();
        let page = std::fs::read_to_string(PAGE).expect("README.md");
        let copy = OTHERWISE.iter().fold(page.clone(), |copy, (theirs, ours)| {
            assert!(copy.contains(theirs), "the page has no {theirs} any more");
            copy.replace(theirs, ours)
        });
        let blocks = blocks(&places.here(&copy)).into_iter();
        let programs = dir.path().join("bin");
        std::fs::create_dir(&programs).unwrap();
        symlink(env!("CARGO_BIN_EXE_reveille"), programs.join("reveille")).unwrap();
        // the password manager of the page
        std::fs::write(programs.join("pass"), "#!/bin/sh\necho canary-of-the-$2\n").unwrap();
        std::fs::set_permissions(programs.join("pass"), PermissionsExt::from_mode(0o755)).unwrap();
        let environment = [
            ("PATH", format!("{}:/usr/bin:/bin", programs.display())),
            ("HOME", dir.path().display().to_string()),
            ("SHELL", "/bin/sh".to_owned()),
            ("NO_COLOR", "1".to_owned()),
            ("REVEILLE_URL", format!("http://127.0.0.1:{}", world.service_port)),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
        let names = Names::default();
        Reader { page, world, places, dir, blocks, names, environment, service: None, differences: String::new() }
    }

    /// The next block of the page, which has to be this one.
    fn next(&mut self, language: &str, first: &str) -> Block {
        let block = self.blocks.next().unwrap_or_else(|| panic!("the page ends before `{first}`"));
        let begins = block.first_line().trim_start_matches("$ ").starts_with(first);
        assert!(
            block.language == language && begins,
            "README.md:{}: here should be `{first}`, and is:\n{}",
            block.line,
            block.text
        );
        block
    }

    /// Leaves out a block that can't be done in a test, for this reason.
    fn pass_over(&mut self, language: &str, first: &str, why: &str) {
        let block = self.next(language, first);
        println!("README.md:{} is passed over: it {why}", block.line);
    }

    fn save(&mut self, language: &str, first: &str, file: &str) {
        let block = self.next(language, first);
        let path = self.dir.path().join(file);
        std::fs::create_dir_all(path.parent().expect("its folder")).unwrap();
        std::fs::write(path, block.text).unwrap();
    }

    /// Adds a block to the configuration, and starts the service with it.
    async fn configure(&mut self, first: &str) {
        let block = self.next("toml", first);
        self.add_to_the_configuration(&block.text);
        self.start_again().await;
    }

    fn add_to_the_configuration(&self, toml: &str) {
        let path = self.dir.path().join("reveille.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, with_tables(&text, toml)).unwrap();
    }

    async fn start_again(&mut self) {
        self.stop().await;
        self.start("exec reveille serve 2>>serve.log", "").await;
    }

    /// Starts the server that a block is.
    async fn serve_by(&mut self, language: &str, first: &str, port: u16) -> Server {
        let block = self.next(language, first);
        Server::start(block.text.trim(), self.dir.path(), port).await
    }

    /// Types the commands of a block, and compares.
    async fn console(&mut self, first: &str) {
        let block = self.next("console", first);
        self.steps(&block.steps()).await;
    }

    async fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            let command = self.names.real(&step.command);
            if command == "reveille serve" {
                // as on a terminal, where the token is shown; its log goes elsewhere
                let on_a_terminal = "exec script -qefc 'echo $$ >pid; exec reveille serve 2>>serve.log' /dev/null";
                let printed = self.start(on_a_terminal, &step.printed).await;
                self.compare(step, &printed);
            } else if let Some((name, value)) = command.strip_prefix("export ").and_then(|set| set.split_once('=')) {
                self.environment.push((name.to_owned(), value.to_owned()));
            } else {
                self.step(step, &command).await;
            }
        }
    }

    /// Types one command. What only reads is typed again until it shows what the page does, or patience ends: the
    /// service works meanwhile.
    async fn step(&mut self, step: &Step, command: &str) {
        let only_reads = [" list", " show ", " explain ", " verify"].iter().any(|verb| command.contains(verb));
        // an answer that is typed stands on the page, and in no pipe
        let (expected, typed) = match step.printed.split_once("[y/N] y\n") {
            Some((before, after)) => (format!("{before}[y/N] {after}"), "y\n"),
            None => (step.printed.clone(), ""),
        };
        let begun = Instant::now();
        loop {
            let printed = self.typed(command, typed).await;
            if self.names.take(&expected, &printed) {
                return;
            }
            if !only_reads || begun.elapsed() > PATIENCE {
                return self.compare(step, &printed);
            }
            pause(LOOK).await;
        }
    }

    /// The output of a command, errors where they come.
    async fn typed(&self, command: &str, typed: &str) -> String {
        let feed = if typed.is_empty() { "</dev/null".to_owned() } else { format!("<<'END'\n{typed}END") };
        let mut shell = self.shell(&format!("{{ {command}\n}} 2>&1 {feed}\n"));
        let done = timeout(PATIENCE, shell.output()).await.unwrap_or_else(|_| panic!("{command} does not end"));
        String::from_utf8(done.expect("run it").stdout).expect("output in UTF-8")
    }

    fn shell(&self, script: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).current_dir(self.dir.path()).env_clear().kill_on_drop(true);
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell
    }

    /// Executes a command that the page does not show, and that has to work.
    async fn quietly(&self, command: &str) {
        let done = self.shell(command).output().await.expect("run it");
        let said = [done.stdout, done.stderr].concat();
        assert!(done.status.success(), "{command}\n{}", String::from_utf8_lossy(&said));
    }

    /// Types a command until this stands in what it prints.
    async fn until(&self, command: &str, text: &str) {
        let begun = Instant::now();
        loop {
            let printed = self.typed(command, "").await;
            if printed.contains(text) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{command} does not print {text}:\n{printed}");
            pause(LOOK).await;
        }
    }

    /// Remembers what is otherwise on the page.
    fn compare(&mut self, step: &Step, printed: &str) {
        if !self.names.take(&step.printed, printed) {
            let (line, command) = (step.line, self.places.on_the_page(&step.command));
            let [page, printed] = [&step.printed, printed].map(|text| self.places.on_the_page(text.trim_end()));
            self.differences +=
                &format!("\nREADME.md:{line}: $ {command}\n--- the page shows\n{page}\n--- it prints\n{printed}\n");
        }
    }

    /// A mail that the page shows was printed by the mail server.
    async fn mail(&mut self, first: &str, server: &Server) {
        let block = self.next("text", first);
        let begun = Instant::now();
        while !server.mails().iter().any(|mail| self.names.take(&block.text, mail)) {
            if begun.elapsed() > PATIENCE {
                let step = Step { command: "(the mail)".into(), printed: block.text.clone(), line: block.line };
                return self.compare(&step, &server.mails().join("\n"));
            }
            pause(LOOK).await;
        }
    }

    /// A sentence of the page's prose is in a mail.
    async fn mailed(&self, sentence: &str, server: &Server) {
        assert!(self.page.contains(&format!("`{sentence}`")), "the page does not say `{sentence}`");
        let begun = Instant::now();
        while !server.mails().iter().any(|mail| mail.contains(sentence)) {
            assert!(begun.elapsed() < PATIENCE, "no mail says `{sentence}`:\n{}", server.mails().join("\n"));
            pause(LOOK).await;
        }
    }

    /// Starts the service; what it prints until it listens.
    async fn start(&mut self, script: &str, expected: &str) -> String {
        let mut shell = self.shell(script);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut printed = String::new();
        let listens = async {
            while let Some(line) = lines.next_line().await.expect("its output") {
                printed += &format!("{}\n", line.trim_end_matches('\r'));
                if line.starts_with("listening on ") {
                    return true;
                }
            }
            false
        };
        let listens = timeout(PATIENCE, listens).await == Ok(true);
        assert!(listens, "the service does not start:\n{printed}{expected}\n{}", self.log());
        if !self.dir.path().join("pid").exists() {
            std::fs::write(self.dir.path().join("pid"), child.id().expect("a process").to_string()).unwrap();
        }
        // what it prints later is read by nobody, and may not stop it
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        self.service = Some(child);
        printed
    }

    async fn stop(&mut self) {
        let mut child = self.service.take().expect("a running service");
        let pid = self.dir.path().join("pid");
        signal("TERM", std::fs::read_to_string(&pid).unwrap().trim().parse().expect("a process id")).await;
        timeout(PATIENCE, child.wait()).await.expect("it ends").expect("its end");
        std::fs::remove_file(pid).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("serve.log")).unwrap_or_default()
    }

    /// Puts a new master key in front of the one that the first start has made.
    async fn change_the_master_key(&mut self) {
        let made = std::fs::read_to_string(self.dir.path().join("data/master.key")).unwrap();
        let keys = ["new:bmV3IGtleSBvZiB0aGUgcmVhZGVyIG9mIHRoZSBwYWc=", made.trim()];
        self.add_to_the_configuration(&format!("[vault]\nmaster_keys = {keys:?}\n"));
        self.start_again().await;
    }

    /// Makes the state of which the page tells before it applies its folder: it was applied, then somebody has edited
    /// it.
    async fn apply_and_edit(&self) {
        let folder: PathBuf = self.dir.path().join("tasks");
        std::fs::copy(folder.join("reports/daily.toml"), folder.join("orders.toml")).unwrap();
        self.quietly("reveille task apply tasks --tenant team --yes").await;
        std::fs::remove_file(folder.join("orders.toml")).unwrap();
        edit(
            &folder.join("reports/daily.toml"),
            &[("Say what is urgent.", "Say what is urgent, and what can wait."), ("0 8 * * 1-5", "30 7 * * 1-5")],
        );
    }

    async fn end(mut self) {
        let left: Vec<Block> = self.blocks.by_ref().collect();
        self.stop().await;
        assert_eq!(left, [], "blocks of the page that nobody has done");
        assert!(self.differences.is_empty(), "the page is not what is printed:\n{}", self.differences);
    }
}

/// A configuration with the tables of a block. The lines of one that is there already stand below its name.
fn with_tables(configuration: &str, block: &str) -> String {
    let mut text = format!("{configuration}\n");
    let mut place = text.len();
    for line in block.lines() {
        let known = text.find(&format!("\n{line}\n")).filter(|_| line.starts_with('[') && !line.starts_with("[["));
        match known {
            Some(at) => place = at + line.len() + 2,
            None => {
                // what begins here is a table of its own
                place = if line.starts_with('[') { text.len() } else { place };
                text.insert_str(place, &format!("{line}\n"));
                place += line.len() + 1;
            }
        }
    }
    text
}

fn edit(file: &Path, changes: &[(&str, &str)]) {
    let mut text = std::fs::read_to_string(file).unwrap();
    for (old, new) in changes {
        assert!(text.contains(old), "{text}");
        text = text.replace(old, new);
    }
    std::fs::write(file, text).unwrap();
}
