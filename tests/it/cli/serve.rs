//! `reveille serve` and `migrate`: the first start, the second, the wrong one, and the end.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use reveille::base::clock;
use serde_json::{Value, json};
use tokio::time::timeout;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::Shell;
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir, signal};
use crate::support::postgres::Database;
use crate::support::servers;

/// A model that takes this long to answer.
fn with_slow_model(service: Service, seconds: f64) -> Service {
    let scenario = format!("[[steps]]\ntext = \"Good morning.\"\ndelay_seconds = {seconds:?}\n");
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).unwrap();
    service.with_config("[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n")
}

async fn started_run(service: &Service) -> String {
    let api = Api::of(service);
    let task = json!({
        "tenant_id": "ann", "name": "Slow", "trigger": { "type": "schedule", "cron": "@yearly" },
        "action": { "instruction": "Say good morning." }, "output": null
    });
    let task = api.post("/v1/tasks", &task).await["id"].as_str().unwrap().to_owned();
    api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    let run = api.until_run(&task, "running", Duration::from_secs(30)).await;
    run["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn first_start_names_the_files_of_its_token_and_its_key_and_the_second_does_not() {
    let mut service = Service::new();
    service.start().await;
    let token = service.admin_token().expect("an admin token").to_owned();
    assert!(service.announced().contains("key file     ./data/master.key"), "{}", service.announced());
    assert!(service.dir.path().join("data/reveille.db").exists());
    assert!(service.announced().contains("admin token  in ./data/admin.token"), "{}", service.announced());
    let printed = format!("{}{}", service.announced(), service.log());
    assert!(!printed.contains(&token), "what a service manager keeps holds no token");
    assert!(service.log().contains("the key file ./data/master.key was made"), "{}", service.log());
    assert!(service.terminate().await.success());

    service.start().await;
    assert!(
        !service.announced().contains("admin token") && !service.announced().contains("key file"),
        "{}",
        service.announced()
    );
    assert_eq!(Api::new(service.url(), &token).get("/v1/tasks").await["items"], json!([]));
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn log_has_a_line_for_the_start_and_one_for_each_execution() {
    let mut service = Service::new();
    service.start().await;
    let api = Api::of(&service);
    let task = |name: &str, filter: &str| {
        let steps = json!([{ "name": "large", "filter": filter }]);
        json!({ "tenant_id": "ann", "name": name, "trigger": { "type": "schedule", "cron": "@yearly" },
                "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null,
                "retry": { "max_attempts": 1 } })
    };
    for (name, filter, end) in [("Good", "1 < 2", "succeeded"), ("Bad", "1 / 0 > 1", "failed")] {
        let task = api.post("/v1/tasks", &task(name, filter)).await["id"].as_str().unwrap().to_owned();
        api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
        api.until_run(&task, end, Duration::from_secs(30)).await;
    }
    let address = service.url().trim_start_matches("http://").to_owned();
    assert!(service.terminate().await.success());
    let log = service.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let saying = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();
    let [started] = saying("started")[..] else { panic!("one start in:\n{log}") };
    assert_eq!((&started["version"], &started["listen"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(address)));
    assert_eq!((&started["bus"], &started["database"]), (&json!("embedded"), &json!("sqlite://./data/reveille.db")));
    assert!(started["instance"].as_str().is_some_and(|id| id.len() == 36), "{started}");
    let told = |line: &Value| (line["level"].clone(), line["task"].clone(), line["state"].clone());
    let [good] = saying("execution ended")[..] else { panic!("one good end in:\n{log}") };
    assert_eq!(told(good), (json!("INFO"), json!("Good"), json!("succeeded")));
    let [bad] = saying("execution failed")[..] else { panic!("one bad end in:\n{log}") };
    assert_eq!(told(bad), (json!("WARN"), json!("Bad"), json!("failed")));
    for line in [good, bad] {
        assert!(line["duration_ms"].is_u64() && line["task_id"].is_string() && line["run_id"].is_string(), "{line}");
        assert_eq!(line["tenant_id"], "ann");
    }
}

#[tokio::test]
async fn log_has_a_line_for_each_end_of_a_run_that_a_foreign_runtime_executes() {
    let runtime = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(202)).mount(&runtime).await;
    let mut service = Service::new().with_config("[egress]\nallow = [\"127.0.0.1:*\"]\n");
    service.start().await;
    let api = Api::of(&service);
    let begun = async |name: &str, seconds: u64| {
        let config = json!({
            "url": runtime.uri(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "completion_timeout_seconds": seconds,
        });
        let task = json!({
            "tenant_id": "ann", "name": name, "trigger": { "type": "schedule", "cron": "@yearly" }, "executor": "webhook",
            "action": { "instruction": "Book a table", "config": config }, "output": null,
        });
        let task = api.post("/v1/tasks", &task).await["id"].as_str().unwrap().to_owned();
        api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
        task
    };
    let (booked, late) = (begun("Booked", 600).await, begun("Late", 1).await);
    let run = api.until_run(&booked, "waiting_for_completion", Duration::from_secs(30)).await;
    let place = format!("/v1/runs/{}/complete", run["id"].as_str().unwrap());
    api.post(&place, &json!({ "state": "succeeded", "output": "Booked for eight." })).await;
    api.until_run(&late, "expired", Duration::from_secs(30)).await;
    assert!(service.terminate().await.success());
    let log = service.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let ends = lines.iter().filter(|line| line["message"] == "run ended outside of an execution");
    let told = |line: &Value| ["level", "task", "task_id", "state", "tenant_id"].map(|field| line[field].clone());
    let mut told: Vec<[Value; 5]> = ends
        .inspect(|line| assert!(line["duration_ms"].is_u64() && line["run_id"].is_string(), "{line}"))
        .map(told)
        .collect();
    told.sort_by_key(|line| line[0].to_string());
    let expected = [
        [json!("INFO"), json!("Booked"), json!(booked), json!("succeeded"), json!("ann")],
        [json!("WARN"), json!("Late"), json!(late), json!("expired"), json!("ann")],
    ];
    assert_eq!(told, expected, "{log}");
}

#[tokio::test]
async fn start_that_fails_loses_no_admin_token() {
    let mut service = Service::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let shell = Shell { dir: service.dir.path(), environment: Vec::new() };
    let said = shell.refused(&["serve", "--listen", &address]).await;
    let expected = format!(
        "error: the service can't listen on {address}: Address already in use (os error 98)\n\
         hint: is another one running there?\n"
    );
    assert_eq!(said, expected);
    assert!(!service.dir.path().join("data").exists(), "nothing is stored before the address is ours");

    let shell = shell.with("REVEILLE_ENGINE__HOUSEKEEPING", "never");
    let done = shell.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_eq!((done.code, done.out.as_str()), (1, ""), "{}", done.err);
    assert!(done.err.contains("`engine.housekeeping`: has 1 field"), "{}", done.err);
    assert!(!service.dir.path().join("data").exists(), "nor before the configuration is judged");

    service.start().await;
    let token = service.admin_token().expect("the first start that succeeds tells the token").to_owned();
    assert_eq!(Api::new(service.url(), &token).get("/v1/tasks").await["items"], json!([]));
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn key_that_opens_nothing_of_what_is_stored_stops_the_start_and_the_check_says_so_too() {
    let key = |id: &str, letter: &str| format!("{id}:{}=", letter.repeat(43));
    let keys = |keys: &[String]| json!(keys).to_string();
    let (old, new) = (key("old", "A"), key("new", "E"));
    let mut service = Service::new();
    let dir = service.dir.path().to_owned();
    let config = |ring: &[String], more: &str| {
        std::fs::write(dir.join("reveille.toml"), format!("[vault]\nmaster_keys = {}\n{more}", keys(ring))).unwrap();
    };
    config(std::slice::from_ref(&old), "");
    service.start().await;
    assert!(service.terminate().await.success());
    config(std::slice::from_ref(&new), "");
    service.start().await; // without secrets any key will do
    assert!(service.terminate().await.success());
    config(std::slice::from_ref(&old), "");
    service.start().await;
    let bearer = ["credential", "set", "shop", "--tenant", "ann", "--host", "api.shop.example", "--inject", "bearer"];
    let set = Shell::beside(&service).fed(&bearer, "canary\n").await;
    assert_eq!((set.code, set.err.as_str()), (0, ""), "{}", set.out);
    assert!(service.terminate().await.success());

    for foreign in [new.clone(), key("old", "E")] {
        config(&[foreign], "");
        let served = Shell::in_dir(&service.dir).run(&["serve", "--listen", "127.0.0.1:0"]).await;
        assert_ne!(served.code, 0);
        assert!(
            served.err.contains("no master key opens any of the secrets that are stored: they need `old`"),
            "{}",
            served.err
        );
        assert!(!service.dir.path().join("data/master.key").exists());
        let checked = Shell::in_dir(&service.dir).run(&["check"]).await;
        assert_ne!(checked.code, 0);
        assert!(checked.out.contains("they need `old`"), "{}", checked.out);
    }
    config(&[new.clone(), old], "");
    service.start().await; // a rotation
    assert!(service.terminate().await.success());
    config(&[new], "accept_lost_keys = true\n");
    service.start().await;
    assert!(service.log().contains("these secrets have to be given anew"), "{}", service.log());
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn data_folder_is_readable_by_its_owner_alone() {
    let mut service = Service::new();
    service.start().await;
    let data = service.dir.path().join("data");
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    let mut files: Vec<String> = std::fs::read_dir(&data)
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| format!("{} {:o}", file.file_name().display(), mode(&file.path())))
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "admin.token 600",
            "login.link 600",
            "master.key 600",
            "reveille.db 600",
            "reveille.db-shm 600",
            "reveille.db-wal 600",
            "reveille.db.lock 600",
            "vapid.key 600"
        ]
    );
}

#[tokio::test]
async fn role_above_row_level_security_is_warned_of() {
    let database = Database::empty().await;
    let owner = url::Url::parse(&servers::postgres_owner_url()).unwrap();
    let mut url = url::Url::parse(&database.url).unwrap();
    url.set_username(owner.username()).unwrap();
    url.set_password(owner.password()).unwrap();
    let service = |url: &str| {
        Service::new()
            .with("REVEILLE_DATABASE__URL", url)
            .with("REVEILLE_VAULT__MASTER_KEYS", "[\"k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]")
    };
    let warning = "the database role is a superuser or has BYPASSRLS, so the database does not keep tenants apart";
    for (url, warned) in [(database.url.as_str(), false), (url.as_str(), true)] {
        let mut service = service(url);
        service.start().await;
        assert_eq!(service.log().contains(warning), warned, "{}", service.log());
        assert!(service.terminate().await.success());
    }
}

#[tokio::test]
async fn second_process_on_the_same_file_is_refused() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell { dir: service.dir.path(), environment: Vec::new() };
    for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
        let said = shell.refused(arguments).await;
        assert!(said.contains("another process uses ./data/reveille.db\nhint: "), "{said}");
    }
}

#[tokio::test]
async fn wrong_configuration_is_refused_with_its_places() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("reveille.toml"), "[engine]\nlease_secons = 3\n").unwrap();
    assert_eq!(
        Shell::in_dir(&dir).refused(&["serve"]).await,
        "error: the configuration is not valid\n  \
         reveille.toml:2:1: unknown key `engine.lease_secons`; did you mean `engine.lease_seconds`?\n\
         hint: config/reveille.toml shows every key with its default\n"
    );
    std::fs::write(dir.path().join("reveille.toml"), "[egress]\nallow = [\"10.0.0.0/99\"]\n").unwrap();
    let said = Shell::in_dir(&dir).with("REVEILLE_CHANNELS__WEBHOOK__TIMEOUT_SECONDS", "0").refused(&["serve"]).await;
    assert!(said.contains("reveille.toml:2:1: `egress.allow.0`: "), "{said}");
}

#[tokio::test]
async fn sigterm_lets_a_run_that_is_nearly_done_finish() {
    let mut service = with_slow_model(Service::new(), 5.0);
    service.start().await;
    let run = started_run(&service).await;
    assert!(service.terminate().await.success());
    service.start().await;
    let run = Api::of(&service).get(&format!("/v1/runs/{run}")).await;
    assert_eq!(
        (&run["state"], &run["attempt"], &run["output"]),
        (&json!("succeeded"), &json!(1), &json!("Good morning."))
    );
}

#[tokio::test]
async fn service_answers_while_it_drains_runs() {
    let mut service = with_slow_model(Service::new(), 600.0).with("REVEILLE_ENGINE__SHUTDOWN_GRACE_SECONDS", "60.0");
    service.start().await;
    let run = started_run(&service).await;
    let http = reveille::ports::egress::operator_client(Duration::from_secs(30));
    let readyz = format!("{}/readyz", service.url());
    let ready = async || {
        let answer = http.get(&readyz).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON")["stopping"].clone())
    };
    assert_eq!(ready().await, (200, json!(false)));
    signal("TERM", service.process_id()).await;
    let until_it_says_so = async {
        while ready().await != (503, json!(true)) {
            clock::pause(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), until_it_says_so).await.expect("it says that it stops");
    let api = Api::of(&service);
    assert_eq!(api.get(&format!("/v1/runs/{run}")).await["state"], "running");
    api.post(&format!("/v1/runs/{run}/cancel"), &json!({})).await;
    let ended = timeout(Duration::from_secs(30), service.ended()).await.expect("it ends when nothing runs any more");
    assert!(ended.success());
}

#[tokio::test]
async fn second_sigterm_stops_at_once() {
    let mut service = with_slow_model(Service::new(), 600.0);
    service.start().await;
    started_run(&service).await;
    let process = service.process_id();
    signal("TERM", process).await;
    timeout(Duration::from_secs(30), service.until_logged("a second signal stops at once")).await.expect("it stops");
    signal("TERM", process).await;
    let ended = timeout(Duration::from_secs(10), service.ended()).await.expect("at once");
    assert_eq!(ended.code(), Some(1));
}

#[tokio::test]
async fn migrate_makes_the_tables_and_serve_needs_keys_on_postgres() {
    let database = Database::empty().await;
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir).with("REVEILLE_DATABASE__URL", &database.url);
    let said = shell.ok(&["migrate"]).await;
    assert!(said.starts_with("the tables are up to date (postgres "), "{said}");
    assert_eq!(shell.ok(&["migrate"]).await, said, "a second time changes nothing");
    let said = shell.refused(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert!(said.contains("no master key"), "{said}");
}

#[tokio::test]
async fn trusted_proxies_and_their_header_are_read_from_the_configuration_file() {
    let client = reveille::ports::egress::operator_client(Duration::from_secs(30));
    let at_most = 48; // streams of one address
    for (config, expected) in [
        ("", [429, 429]),
        ("[server]\ntrusted_proxies = [\"192.0.2.7\"]\nforwarded_header = \"forwarded\"\n", [429, 429]),
        ("[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n", [429, 429]),
        ("[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\nforwarded_header = \"forwarded\"\n", [429, 200]),
    ] {
        let mut service = Service::new().with_config(config);
        service.start().await;
        let (url, token) = (format!("{}/v1/events/stream", service.url()), service.admin_token().unwrap().to_owned());
        let follow = async |last: u8| {
            let asked = client.get(&url).bearer_auth(&token).header("forwarded", format!("for=203.0.113.{last}"));
            asked.send().await.expect("an answer")
        };
        let mut open = Vec::new();
        for number in 0..at_most {
            let stream = follow(1).await;
            assert_eq!(stream.status().as_u16(), 200, "stream {number} under {config:?}");
            open.push(stream);
        }
        let beyond = [follow(1).await.status().as_u16(), follow(2).await.status().as_u16()];
        assert_eq!(beyond, expected, "a client of its own under {config:?}");
        drop(open);
        service.kill().await;
    }
}
