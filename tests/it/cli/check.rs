//! `reveille check`: each thing that is wrong is found, with a hint; correct settings are left alone.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use reveille::base::clock::Clock;
use reveille::domain::event::Event;
use reveille::ports::llm::Models;
use reveille::ports::llm::fallback::RetryWait;
use reveille::ports::llm::tokens::encoders::Encoders;
use reveille::store::{self, Store};
use serde_json::{Value, json};
use sqlx::{Connection, SqliteConnection};
use wiremock::matchers::{body_string_contains, header, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::Shell;
use crate::support::binary::{Service, TempDir};
use crate::support::model::{AnthropicFormat, ModelServer, OpenAiFormat, ResponsesFormat};
use crate::support::postgres::Database;
use crate::support::servers;
use crate::support::smtp::MailServer;

/// `{name: verdict}` of what `check --json` answers.
fn verdicts(answer: &Value) -> Value {
    let checks = answer["checks"].as_array().unwrap().iter();
    let mut verdicts: BTreeMap<String, Value> =
        checks.map(|check| (check["name"].as_str().unwrap().to_owned(), check["verdict"].clone())).collect();
    // it depends on the day; `cli::check::zones` has its cases
    assert!(verdicts.remove("time zones").is_some(), "{answer}");
    json!(verdicts)
}

#[tokio::test]
async fn check_of_an_empty_configuration_passes_and_creates_nothing() {
    let dir = TempDir::new();
    let answer = Shell::in_dir(&dir).json(&["check"]).await;
    assert_eq!(
        verdicts(&answer),
        json!({ "configuration": "fine", "data directory": "fine", "database": "fine", "keys": "fine",
                "egress": "fine", "model": "odd", "event bus": "fine", "email": "fine", "push": "fine", "public_url": "fine" })
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a look leaves nothing behind");
}

#[tokio::test]
async fn database_that_a_service_uses_is_fine() {
    let mut service = Service::new();
    service.start().await;
    let said = Shell::beside(&service).ok(&["check"]).await;
    assert!(said.contains("./data/reveille.db is in use by a running service"), "{said}");
}

#[tokio::test]
async fn database_that_others_may_read_is_odd() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    shell.ok(&["migrate"]).await;
    let file = dir.path().join("data/reveille.db");
    assert_eq!(verdicts(&shell.json(&["check"]).await).get("database file"), None);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let said = shell.ok(&["check"]).await;
    assert!(said.contains("other users of this machine may open ./data/reveille.db (mode 644)"), "{said}");
    assert!(said.contains("hint: stop the service, then chmod 600 ./data/reveille.db*"), "{said}");
}

#[tokio::test]
async fn stored_zone_release_that_cannot_be_read_is_odd() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    shell.ok(&["migrate"]).await;
    assert!(!shell.ok(&["check"]).await.contains("what is stored as release"));
    let url = format!("sqlite://{}", dir.path().join("data/reveille.db").display());
    let mut database = SqliteConnection::connect(&url).await.unwrap();
    for (release, set_aside_at) in [("2999a", None), ("soon", Some("2026-11-23T08:00:00+00:00"))] {
        let row = "insert into zone_releases (release, rules, created_at, set_aside_at)
                   values ($1, x'7b', '2026-11-23T08:00:00+00:00', $2)";
        sqlx::query(row).bind(release).bind(set_aside_at).execute(&mut database).await.unwrap();
    }
    database.close().await.unwrap();
    let said = shell.ok(&["check"]).await;
    assert!(said.contains("what is stored as release soon, 2999a can't be read: it is set aside"), "{said}");
}

#[tokio::test]
async fn servers_that_answer_are_fine() {
    let dir = TempDir::new();
    let (model, mail, database) =
        (ModelServer::start::<OpenAiFormat>().await, MailServer::start().await, Database::empty().await);
    let key = "k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let config = format!(
        "[database]\nurl = \"{}\"\n[vault]\nmaster_keys = [\"{key}\"]\n\
         [llm.models.main]\nbase_url = \"{}\"\nmodel = \"m\"\n[channels.email]\nurl = \"smtp://{}\"\nfrom = \"a@b.c\"\n",
        database.url,
        model.url(),
        mail.address()
    );
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let shell = Shell::in_dir(&dir);
    assert_eq!(
        verdicts(&shell.json(&["check"]).await),
        json!({ "configuration": "fine", "data directory": "fine", "database": "fine", "database role": "fine",
                "keys": "fine", "egress": "fine", "model main": "fine", "event bus": "fine", "email": "fine",
                "push": "fine", "public_url": "odd" })
    );
    let migrations = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres")).unwrap().count();
    assert!(shell.ok(&["check"]).await.contains(&format!("{migrations} migrations are run by `reveille migrate`")));
    shell.ok(&["migrate"]).await;
    assert!(shell.ok(&["check"]).await.contains("its tables are up to date"));
}

/// A model of each wire, one of which refuses a setting, one all tools, and one does not call them.
#[tokio::test]
async fn question_to_each_model_names_what_is_refused() {
    let dir = TempDir::new();
    let chat = ModelServer::start::<OpenAiFormat>().await;
    let responses = ModelServer::start::<ResponsesFormat>().await;
    let anthropic = ModelServer::start::<AnthropicFormat>().await;
    let odd = MockServer::start().await;
    let refusal = |what: &str| {
        let error = json!({ "error": { "message": format!("Unsupported parameter: {what}"), "type": "invalid_request_error" } });
        ResponseTemplate::new(400).set_body_json(error)
    };
    let said =
        json!({ "choices": [{ "message": { "role": "assistant", "content": "Noon." }, "finish_reason": "stop" }] });
    let says = || ResponseTemplate::new(200).set_body_json(said.clone());
    for (model, field, what) in [("cool", "\"temperature\"", "temperature"), ("bare", "\"tools\"", "tools")] {
        let place = format!("/{model}/chat/completions");
        Mock::given(path(&place)).and(body_string_contains(field)).respond_with(refusal(what)).mount(&odd).await;
        Mock::given(path(&place)).respond_with(says()).mount(&odd).await;
    }
    let no = ResponseTemplate::new(401).set_body_json(json!({ "error": { "message": "Incorrect API key" } }));
    let is_old = header("authorization", "Bearer sk-old");
    Mock::given(path("/keys/chat/completions")).and(is_old).respond_with(no).mount(&odd).await;
    Mock::given(path("/keys/chat/completions")).respond_with(says()).mount(&odd).await;
    let model = |name: &str, provider: &str, url: String, more: &str| {
        format!("[llm.models.{name}]\nprovider = \"{provider}\"\nbase_url = \"{url}\"\nmodel = \"m\"\n{more}\n")
    };
    let config = [
        model("main", "openai", chat.url(), ""),
        model("second", "openai-responses", responses.url(), "effort = \"low\""),
        model("third", "anthropic", anthropic.url(), "thinking = \"adaptive\""),
        model("cool", "openai", format!("{}/cool", odd.uri()), "temperature = 0.1"),
        model("bare", "openai", format!("{}/bare", odd.uri()), ""),
        model("keys", "openai", format!("{}/keys", odd.uri()), "api_keys = [\"sk-new\", \"sk-old\"]"),
    ]
    .concat();
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let shell = Shell::in_dir(&dir);
    let silent = shell.json(&["check"]).await;
    assert!(!silent.to_string().contains("answer main") && chat.requests().is_empty(), "nothing is asked unasked");
    let done = shell.run(&["check", "--ask", "--json"]).await;
    assert_eq!((done.code, done.err.as_str()), (1, "error: 3 things are wrong\n"), "{}", done.out);
    let answer: Value = serde_json::from_str(&done.out).unwrap();
    let of = |name: &str| {
        let checks = answer["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["name"] == format!("answer {name}")).expect("a finding");
        json!([found["verdict"], found["message"], found["hint"]])
    };
    for name in ["main", "second", "third"] {
        assert_eq!(of(name), json!(["fine", "called the tool and went on; 220 + 15 tokens", null]), "{name}");
    }
    let hint = "`temperature` is refused: without it the model answers";
    assert_eq!(of("cool"), json!(["wrong", "refused: 400: Unsupported parameter: temperature", hint]));
    let hint = "tools are refused: without them the model answers; an agent needs one that calls tools";
    assert_eq!(of("bare"), json!(["wrong", "refused: 400: Unsupported parameter: tools", hint]));
    assert_eq!(of("keys, key 1")[0], "odd", "it answers, though without the tool");
    assert_eq!(of("keys, key 2"), json!(["wrong", "the key was refused: 401: Incorrect API key", null]));
}

/// The findings of `check --ask` with this configuration, by their names: verdict, message and hint.
async fn asked(config: &str) -> BTreeMap<String, Value> {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let done = Shell::in_dir(&dir).run(&["check", "--ask", "--json"]).await;
    let answer: Value = serde_json::from_str(&done.out).unwrap();
    let finding = |check: &Value| {
        let found = json!([check["verdict"], check["message"], check["hint"]]);
        (check["name"].as_str().unwrap().to_owned(), found)
    };
    answer["checks"].as_array().unwrap().iter().map(finding).collect()
}

/// A server of chat completions that refuses requests with these words, whichever comes first, and answers all others.
async fn refusing(words: &[&str]) -> MockServer {
    let server = MockServer::start().await;
    for word in words {
        let error = json!({ "error": { "message": format!("Unsupported: {word}"), "type": "invalid_request_error" } });
        let refusal = ResponseTemplate::new(400).set_body_json(error);
        let place = Mock::given(path("/chat/completions")).and(body_string_contains(*word));
        place.respond_with(refusal).mount(&server).await;
    }
    let said =
        json!({ "choices": [{ "message": { "role": "assistant", "content": "Noon." }, "finish_reason": "stop" }] });
    let says = ResponseTemplate::new(200).set_body_json(said);
    Mock::given(path("/chat/completions")).respond_with(says).mount(&server).await;
    server
}

/// A run lowers the level of thinking that is refused; here it would hide what is wrong.
#[tokio::test]
async fn level_of_thinking_that_is_refused_is_named_and_not_lowered() {
    let server = refusing(&["\"max\""]).await;
    let main = format!("[llm.models.main]\nbase_url = \"{}\"\nmodel = \"m\"\neffort = \"max\"\n", server.uri());
    let hint = "`effort` is refused: without it the model answers";
    assert_eq!(asked(&main).await["answer main"], json!(["wrong", "refused: 400: Unsupported: \"max\"", hint]));
}

#[tokio::test]
async fn each_refused_setting_is_named_and_the_name_of_the_longest_answer_apart_from_its_length() {
    let other_name = "is refused: with `max_tokens_field = \"max_completion_tokens\"` the model answers";
    let both = "without them, and with `max_tokens_field = \"max_completion_tokens\"`,";
    let cases: [(&[&str], &str, String); 6] = [
        (
            &["\"temperature\"", "\"top_p\""],
            "temperature = 0.5\ntop_p = 0.5\nmax_output_tokens = 500",
            "`temperature` and `top_p` are refused: without them the model answers".to_owned(),
        ),
        (
            &["\"max_tokens\""],
            "max_output_tokens = 5000\nmax_tokens_field = \"max_tokens\"",
            format!("`max_tokens_field = \"max_tokens\"` {other_name}"),
        ),
        (&["\"max_tokens\""], "max_output_tokens = 500", format!("`max_tokens_field = \"max_tokens\"` {other_name}")),
        (
            &["99999"],
            "max_output_tokens = 99999",
            "`max_output_tokens` is refused: without it the model answers".to_owned(),
        ),
        (
            &["\"temperature\"", "\"max_tokens\""],
            "temperature = 0.5\ntop_p = 0.5\nmax_output_tokens = 5000",
            format!("`temperature` and `max_tokens_field = \"max_tokens\"` are refused: {both} the model answers"),
        ),
        (
            &["\"temperature\"", "\"stream_options\""],
            "temperature = 0.5",
            "`temperature` and `stream_usage` are refused: without them the model answers".to_owned(),
        ),
    ];
    for (words, settings, hint) in cases {
        let server = refusing(words).await;
        let main = format!("[llm.models.main]\nbase_url = \"{}\"\nmodel = \"m\"\n{settings}\n", server.uri());
        let found = asked(&main).await.remove("answer main").expect("a finding");
        assert_eq!((&found[0], &found[2]), (&json!("wrong"), &json!(hint)), "{found}");
    }
}

#[tokio::test]
async fn model_that_only_makes_vectors_is_asked_for_one() {
    let server = refusing(&[]).await;
    let answer = json!({ "data": [{ "index": 0, "embedding": [3.0, 4.0] }] });
    let error = json!({ "error": { "message": "no such length", "type": "invalid_request_error" } });
    let refusal = ResponseTemplate::new(400).set_body_json(error);
    let place = || Mock::given(path("/vectors/embeddings"));
    place().and(body_string_contains("\"dimensions\"")).respond_with(refusal).mount(&server).await;
    place().respond_with(ResponseTemplate::new(200).set_body_json(answer)).mount(&server).await;
    let config = |more: &str| {
        let uri = server.uri();
        format!(
            "[llm.models.main]\nbase_url = \"{uri}\"\nmodel = \"m\"\n\
             [llm.models.embedder]\nbase_url = \"{uri}/vectors\"\nmodel = \"v\"\n\
             [memory]\nembedding_model = \"embedder\"\n{more}\n"
        )
    };
    let found = asked(&config("")).await;
    assert_eq!(found["vector embedder"], json!(["fine", "made a vector of 2 numbers", null]));
    assert!(found.contains_key("answer main") && !found.contains_key("answer embedder"), "{found:?}");
    let hint = "`[memory] embedding_dimensions` is refused: without it the model makes a vector";
    let found = asked(&config("embedding_dimensions = 8")).await;
    assert_eq!(found["vector embedder"], json!(["wrong", "refused: 400: no such length", hint]));
    // one that is asked questions, too, is asked both
    let found = asked(&config("model = \"embedder\"")).await;
    assert_eq!(found["vector embedder"][0], "fine");
    assert_eq!(found["answer embedder"][0], "wrong", "{found:?}");
}

#[tokio::test]
async fn models_of_the_readme_can_be_asked() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let begin = page.find("[llm]\n").expect("the section about models");
    let end = begin + page[begin..].find("```").expect("the end of its block");
    let mut config: toml::Table = toml::from_str(&page[begin..end]).unwrap();
    let mut settings: reveille::ports::llm::Settings = config.remove("llm").unwrap().try_into().unwrap();
    settings.resolve_keys(|name| name.ends_with("_API_KEY").then(|| "sk-test".to_owned())).unwrap();
    let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
    let models = Models::build(&settings, &Encoders::default(), retry, &Clock::system()).unwrap();
    let chain = models.chain(None, "ann").unwrap();
    assert_eq!(chain.names().collect::<Vec<_>>(), ["gpt", "claude", "local"]);
    let wires: Vec<&str> = settings.models.values().map(|model| model.provider.as_str()).collect();
    assert_eq!(wires, ["anthropic", "openai-responses", "openai"]);
}

#[tokio::test]
async fn everything_that_is_wrong_is_said_at_once_and_no_password_is() {
    let dir = TempDir::new();
    let config = "[database]\nurl = \"postgres://u:canary-1@127.0.0.1:1/x\"\n[server]\ndata_dir = \"/proc/nowhere\"\n\
        [llm.models.main]\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\napi_key = \"canary-2\"\n\
        [channels.email]\nurl = \"smtp://u:canary-3@127.0.0.1:1\"\nfrom = \"a@b.c\"\n[egress]\nallow = [\"10.0.0.0/99\"]\n\
        [bus]\nurl = \"redis://u:canary-4@127.0.0.1:1\"\n";
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let done = Shell::in_dir(&dir).run(&["check", "--json"]).await;
    assert_eq!((done.code, done.err.as_str()), (1, "error: 7 things are wrong\n"));
    assert!(!done.out.contains("canary"), "{}", done.out);
    let answer: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        verdicts(&answer),
        json!({ "configuration": "fine", "data directory": "wrong", "database": "wrong", "keys": "wrong",
                "egress": "wrong", "model main": "wrong", "event bus": "wrong", "email": "wrong", "push": "fine",
                "public_url": "odd" })
    );
}

#[tokio::test]
async fn role_that_sees_through_row_level_security_is_wrong() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir)
        .with("REVEILLE_DATABASE__URL", servers::postgres_owner_url())
        .with("REVEILLE_VAULT__MASTER_KEYS", "[\"k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]");
    let done = shell.run(&["check"]).await;
    assert_eq!(done.code, 1);
    assert!(done.out.contains("`owner` is a superuser or has BYPASSRLS"), "{}", done.out);
    assert!(done.out.contains("hint: create role reveille login nosuperuser nobypassrls"), "{}", done.out);
}

/// Twilio, Slack and Telegram at one address.
async fn providers(status: u16, answers: [Value; 3]) -> (MockServer, String) {
    let server = MockServer::start().await;
    let places = ["/2010-04-01/Accounts/AC1.json", "/api/auth.test", "/bot1:canary-telegram/getMe"];
    for (place, answer) in places.into_iter().zip(answers) {
        let answer = ResponseTemplate::new(status).set_body_json(answer);
        Mock::given(path(place)).respond_with(answer).mount(&server).await;
    }
    let base = server.uri();
    let config = format!(
        "[channels.sms]\naccount = \"AC1\"\ntoken = \"canary-sms\"\nfrom = \"Wake\"\nbase_url = \"{base}\"\n\
         [channels.slack]\ntoken = \"xoxb-canary-slack\"\nbase_url = \"{base}/api\"\n\
         [channels.telegram]\ntoken = \"1:canary-telegram\"\nbase_url = \"{base}\"\n"
    );
    (server, config)
}

#[tokio::test]
async fn logins_of_sms_slack_and_telegram_are_tried_and_counted_among_the_ways_to_tell_people() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    let (_server, config) = providers(
        200,
        [
            json!({ "status": "active" }),
            json!({ "ok": true, "user": "wake", "team": "Team" }),
            json!({ "ok": true, "result": { "username": "wake_bot" } }),
        ],
    )
    .await;
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let answer = shell.json(&["check"]).await;
    let found = verdicts(&answer);
    for name in ["email", "sms", "slack", "telegram"] {
        assert_eq!(found[name], "fine", "{name}: {answer}");
    }
    // people are told, and their links lead nowhere
    assert_eq!(found["public_url"], "odd", "{answer}");
    let said = shell.ok(&["check"]).await;
    assert!(
        said.contains("not configured; messages go by SMS, Slack, Telegram, push, webhook and open sessions"),
        "{said}"
    );
    assert!(
        said.contains("Twilio takes the login of AC1") && said.contains("Telegram knows the bot @wake_bot"),
        "{said}"
    );

    let refusals = [
        json!({ "message": "Authenticate: canary-sms" }),
        json!({ "ok": false, "error": "invalid_auth" }),
        json!({ "ok": false, "description": "Unauthorized 1:canary-telegram" }),
    ];
    let (_server, config) = providers(401, refusals).await;
    std::fs::write(dir.path().join("reveille.toml"), config).unwrap();
    let done = shell.run(&["check"]).await;
    assert_eq!((done.code, done.err.as_str()), (1, "error: 3 things are wrong\n"), "{}", done.out);
    for line in [
        "Twilio answered 401: Authenticate: [redacted]",
        "Slack answered 401: invalid_auth",
        "Telegram answered 401: Unauthorized [redacted]",
    ] {
        assert!(done.out.contains(line), "{}", done.out);
    }
    assert!(!done.out.contains("canary"), "{}", done.out);
}

#[tokio::test]
async fn events_that_a_change_of_the_bus_left_in_the_database_are_told_of() {
    let redis = servers::redis_url();
    let prefix = format!("t{:016x}", fastrand::u64(..));
    let mut service = Service::new().with("REVEILLE_BUS__URL", &redis).with("REVEILLE_BUS__STREAM_PREFIX", prefix);
    let data = service.dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let store = Store::open(&store::Settings::default(), &data, Clock::system(), |_| {}).await.unwrap();
    let event = |id: &str| {
        let fields = json!({ "specversion": "1.0", "tenantid": "ann", "id": id, "source": "shop", "type": "order" });
        Event::try_from(fields).unwrap()
    };
    store.publish_events(&[event("1"), event("2")]).await.unwrap();
    store.close().await;
    drop(store);
    let told = "2 events wait on the bus in the database, which nothing reads while bus.url names a Redis";
    let back = "set bus.url back to `embedded`";
    let shell = Shell { dir: service.dir.path(), environment: Vec::new() };
    let said = shell.ok(&["check"]).await;
    assert!(!said.contains("wait on the bus"), "a start with this bus handles them: {said}");
    let said = shell.with("REVEILLE_BUS__URL", &redis).ok(&["check"]).await;
    assert!(said.contains(told) && said.contains(back), "{said}");
    service.start().await;
    let log = service.log();
    assert!(log.contains(told) && log.contains(back), "{log}");
    assert!(service.terminate().await.success());
}
