//! The dashboard in a real browser over the real binary: Chromium, driven by `tests/browser/dashboard.mjs`.
//!
//! Without `REVEILLE_TEST_IMAGES` the pictures are looked at and thrown away; with it they are kept there
//! (`docs/images`, shown in the README).

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::approvals::browser::drive;
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::servers::{chromium, images};
use crate::support::sink::Sink;

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// Entries that the transcript of the long run is given.
const LONG: usize = 5_000;
/// Days before this one that the chart of usage has.
const DAYS: usize = 13;
/// Turns of the run that goes on while it is watched.
const STEPS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn dashboard_bears_everyone_who_opens_it() {
    let (world, phone) = (outside().await, Sink::start().await);
    let mut service = service(&world);
    service.start().await;
    let mut given = fill(&service, &world, &phone).await;
    let dir = service.dir.path();
    let (figures, state) = (dir.join("figures.json"), dir.join("state.json"));
    given["chromium"] = chromium().into();
    given["images"] = images().unwrap_or_else(|| dir.join("images").display().to_string()).into();
    given["base"] = service.url().into();
    given["admin"] = service.admin_token().expect("the first start makes an admin token").into();
    given["figures"] = figures.display().to_string().into();
    given["state"] = state.display().to_string().into();
    assert_eq!(drive("dashboard.mjs", &given).await, Ok(()));
    println!("the dashboard in Chromium: {}", std::fs::read_to_string(figures).expect("figures"));

    plant(&service, "update ui_sessions set ends_at = created_at".to_owned()).await;
    assert_eq!(drive("expired.mjs", &given).await, Ok(()));
    assert!(service.terminate().await.success());
}

/// The inbox that a tool reads, and the office that one writes to.
async fn outside() -> MockServer {
    let world = MockServer::start().await;
    let urgent = json!({ "from": "The railway", "subject": "Your train is late" });
    let mails = json!({ "unread": 2, "mails": [urgent, { "from": "Mia" }] });
    let inbox = ResponseTemplate::new(200).set_body_json(mails);
    Mock::given(method("GET")).and(path("/inbox")).respond_with(inbox).mount(&world).await;
    let office = ResponseTemplate::new(200).set_body_json(json!({ "said": "It is told." }));
    Mock::given(method("POST")).and(path("/office")).respond_with(office).mount(&world).await;
    world
}

/// A service with a model that follows a script, and that costs something.
fn service(world: &MockServer) -> Service {
    let service = Service::new();
    let scenario = service.dir.path().join("scenario.toml");
    std::fs::write(&scenario, scenario_text(&world.uri())).expect("written");
    service.with_config(&format!(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = {}\n\
         price_per_million_input = 2.5\nprice_per_million_output = 15.0\n\
         [[agents]]\nname = \"booker\"\ndescription = \"Books tables.\"\ninstruction = \"Book.\"\ntools = [\"current_time\"]\n\
         [egress]\nallow = [\"127.0.0.1:*\"]\n",
        json!(scenario),
    ))
}

/// The script of the model. Texts of JSON are texts of TOML.
fn scenario_text(world: &str) -> String {
    let step = |when: &str, turn: usize, text: &str, calls: &[(&str, Value)], delay: f64| {
        let calls = calls.iter().map(|(tool, args)| {
            let args = args.as_object().expect("an object").iter().map(|(name, value)| match value {
                Value::Object(fields) => {
                    let fields = fields.iter().map(|(name, value)| format!("{name} = {value}"));
                    format!("{name} = {{ {} }}", fields.collect::<Vec<_>>().join(", "))
                }
                value => format!("{name} = {value}"),
            });
            let args = args.collect::<Vec<_>>().join(", ");
            format!("[[steps.calls]]\ntool = \"{tool}\"\nargs = {{ {args} }}\n")
        });
        let calls: String = calls.collect();
        format!(
            "[[steps]]\nwhen = \"{when}\"\nturn = {turn}\ntext = {}\ndelay_seconds = {delay:?}\n{calls}\n",
            json!(text)
        )
    };
    let zone = |zone: &str| ("current_time", json!({ "timezone": zone }));
    let inbox = ("http_request", json!({ "url": format!("{world}/inbox") }));
    let body = json!({ "text": "The build is red." });
    let office = ("http_send", json!({ "url": format!("{world}/office"), "method": "POST", "body": body }));
    let zones = ["Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata", "America/Lima", "Africa/Cairo", "UTC"];
    let mut text =
        step("unread mails", 1, "I look at the clock and into the inbox.", &[zone("Europe/Berlin"), inbox], 0.05);
    text += &step(
        "unread mails",
        2,
        "Two unread mails, one of them urgent: the railway says that your train is late.",
        &[],
        0.05,
    );
    text += &step("tell the office", 1, "I tell the office.", &[office], 0.05);
    text += &step("tell the office", 2, "The office knows.", &[], 0.05);
    for (at, name) in zones.into_iter().enumerate().take(STEPS) {
        text += &step("six steps", at + 1, &format!("This is step {} of six.", at + 1), &[zone(name)], 1.0);
    }
    text += &step("six steps", STEPS + 1, "All steps are done.", &[], 1.0);
    text + &step("do harm", 1, &hostile(), &[], 0.0)
}

/// Markup, characters that hide and turn text around, and a very long line.
fn hostile() -> String {
    let line = "x".repeat(1_000_000);
    format!("<script>alert(1)</script><img src=x onerror=alert(1)> pay \u{202e}001\u{202c} \u{200b}now {line}")
}

/// Has people use the service before the browser comes; answers the ids of their things.
async fn fill(service: &Service, world: &MockServer, phone: &Sink) -> Value {
    let api = Api::of(service);
    let secret = format!("whsec_{}", "AAAA".repeat(8));
    let webhook = json!({ "url": phone.url(), "secret": secret });
    let recipient =
        json!({ "timezone": "Europe/Berlin", "addresses": { "webhook": webhook }, "fallback": ["webhook"] });
    api.put("/v1/recipients/ann", &recipient).await;
    let mail = task(&api, "ann", "Morning mail", "Summarize my unread mails.").await;
    let run = finished(&api, &mail).await;
    let delivery = api.until_delivery(&run, "delivered", PATIENCE).await["id"].clone();
    let long = finished(&api, &mail).await;
    let office = task(&api, "ann", "Office", "Tell the office that the build is red.").await;
    let asking = begun(&api, &office).await;
    api.until_run(&office, "pending_approval", PATIENCE).await;
    let approvals = api.get("/v1/approvals?status=pending").await;
    let harm = task(&api, "ann", "Harm", "Do harm.").await;
    let hostile = finished(&api, &harm).await;
    let slow = task(&api, "ann", "Slow", "Do six steps.").await;
    let bob = task(&api, "bob", "Bob's mail", "Summarize my unread mails.").await;
    let run_of_bob = finished(&api, &bob).await;
    let event = json!({
        "tenant_id": "ann", "source": "shop", "type": "order.created", "data": { "url": world.uri(), "total": 120 },
    });
    api.post("/v1/events", &event).await;
    api.post("/v1/facts", &json!({ "tenant_id": "ann", "text": "Ann takes the train at eight." })).await;
    let token = api.post("/v1/tokens", &json!({ "tenant_id": "ann", "name": "ann", "scopes": ["*"] })).await;
    plant(service, lengthened(&long)).await;
    plant(service, earlier_usage()).await;
    json!({
        "task": mail, "run": run, "delivery": delivery, "long": long, "asking": asking, "slow": slow, "hostile": hostile,
        "approval": approvals["items"][0]["id"], "ann": token["token"], "annToken": token["id"],
        "bob": { "task": bob, "run": run_of_bob },
    })
}

/// A task that is due every morning; answers its id.
async fn task(api: &Api, tenant: &str, name: &str, instruction: &str) -> String {
    let trigger = json!({ "type": "schedule", "cron": "0 8 * * *", "timezone": "Europe/Berlin" });
    let task =
        json!({ "tenant_id": tenant, "name": name, "trigger": trigger, "action": { "instruction": instruction } });
    id(&api.post("/v1/tasks", &task).await)
}

/// A run of the task that was asked for; answers its id.
async fn begun(api: &Api, task: &str) -> String {
    id(&api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await)
}

/// The id of a run of the task, once it has succeeded.
async fn finished(api: &Api, task: &str) -> String {
    let run = begun(api, task).await;
    let newest = api.until_run(task, "succeeded", PATIENCE).await;
    assert_eq!(id(&newest), run);
    run
}

fn id(body: &Value) -> String {
    body["id"].as_str().expect("an id").to_owned()
}

/// Adds so many entries to the transcript of a run: turns of a model with a call each, and its result.
fn lengthened(run: &str) -> String {
    let run = run.replace('-', "");
    format!(
        "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {LONG}),
            ended as (select run_id, max(seq) as seq, max(turn) as turn, max(format) as format, max(created_at) as created_at
                      from turns where run_id = x'{run}' group by run_id)
         insert into turns (run_id, seq, turn, format, body, created_at)
         select run_id, seq + n, turn + (n + 1) / 2, format,
            case when n % 2 = 1
                then json_object('role', 'assistant', 'text', 'Turn ' || n, 'tool_calls', json_array(json_object(
                    'id', 'call_' || n, 'name', 'current_time', 'args', json_object('n', n))))
                else json_object('role', 'tool', 'call_id', 'call_' || (n - 1), 'name', 'current_time', 'content', 'Noon.')
            end, created_at
         from ended, numbers"
    )
}

/// Gives the days before today usage of the kind that today has.
fn earlier_usage() -> String {
    format!(
        "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {DAYS})
         insert into usage_days
         select tenant_id, date(day, '-' || n || ' days'), task_id, kind, name, calls * (1 + n % 4), failures,
            duration_ms * (1 + n % 4), input_tokens * (1 + n % 4), output_tokens * (1 + n % 3), cache_read_tokens,
            cache_write_tokens, reasoning_tokens, cost_micros * (1 + n % 4), result_chars
         from usage_days, numbers"
    )
}

/// Runs a statement on the database of the service, beside it.
async fn plant(service: &Service, statement: String) {
    let file = service.dir.path().join("data/reveille.db");
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(PATIENCE);
    let mut connection = options.connect().await.expect("a connection");
    sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.expect("planted");
}
