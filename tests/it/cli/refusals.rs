//! `reveille check` and `reveille serve` judge a configuration alike: each refusal of a start is one of a look.

use serde_json::Value;

use super::Shell;
use crate::support::binary::TempDir;

/// A faulty configuration, and the key that is at fault, as it is named to people. At least one of each section
/// in which a value can be refused, and of each part that is judged where it is built.
const REFUSALS: &[(&str, &str)] = &[
    ("[server]\nlisten = \"nowhere\"", "server.listen"),
    ("[server]\npublic_url = \"example\"", "server.public_url"),
    ("[server]\ntrusted_proxies = [\"10.0.0.0/99\"]", "server.trusted_proxies.0"),
    ("[hooks.x]\nsecrets = [\"\"]\ntenant_id = \"ann\"", "hooks.x.secrets.0"),
    (
        "[vault]\nmaster_keys = [\"k1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n[database]\nurl = \"mysql://h/d\"",
        "database.url",
    ),
    ("[bus]\nurl = \"redis://\"", "bus.url"),
    ("[bus]\npartitions = 0", "bus.partitions"),
    ("[engine]\nhousekeeping = \"0 3 * *\"", "engine.housekeeping"),
    ("[engine]\nhousekeeping = \"0 0 30 2 *\"", "engine.housekeeping"),
    ("[llm.models.main]\nmodel = \"m\"\nprovider = \"opnai\"", "llm.models.main.provider"),
    ("[encoders.m]\nsafety_margin = 0.5", "encoders.m.safety_margin"),
    ("[react]\nmax_turns = 0", "react.max_turns"),
    ("[context]\nsummary_max_tokens = 10", "context.summary_max_tokens"),
    ("[gate]\npatterns = [\"ok\", \"(\"]", "gate.patterns.1"),
    ("[gate]\nwords = [\" \"]", "gate.words.0"),
    ("[gate_rates.tiers.free]\ntenants = [\"ann \"]", "gate_rates.tiers.free.tenants"),
    ("[verifiers.severity]\nI-0009 = \"off\"", "verifiers.severity.I-0009"),
    ("[egress]\nallow = [\"10.0.0.0/99\"]", "egress.allow.0"),
    ("[channels]\ntemplates_dir = \"/nowhere/at/all\"", "channels.templates_dir"),
    ("[channels.email]\nurl = \"smtp://127.0.0.1:1\"", "channels.email.from"),
    ("[channels.live]\nwait_seconds = 0", "channels.live.wait_seconds"),
    ("[channels.webhook]\ntimeout_seconds = 0", "channels.webhook.timeout_seconds"),
    ("[channels.telegram]\ntoken = \"x\"", "channels.telegram.token"),
    ("[channels.slack]\ntoken = \"xoxb-1\"\nbase_url = \"x\"", "channels.slack.base_url"),
    ("[channels.sms]\ntoken = \"x\"", "channels.sms.account"),
    ("[channels.push.ntfy]\nurl = \"x\"", "channels.push.ntfy.url"),
    ("[channels.push.vapid]\nprivate_key = \"x\"", "channels.push.vapid.private_key"),
    (
        "[[tools]]\nname = \"send note\"\ndescription = \"d\"\ncategory = \"read\"\nconsequence = \"low\"\n\
         http = { method = \"GET\", url = \"https://notes.example.org\" }",
        "tools.0.name",
    ),
    (
        "[[tools]]\nname = \"current_time\"\ndescription = \"d\"\ncategory = \"read\"\nconsequence = \"low\"\n\
         http = { method = \"GET\", url = \"https://notes.example.org\" }",
        "two tools are named `current_time`",
    ),
    ("[tool_policies.current_tim]\ncache = true", "tool_policies.current_tim"),
    ("[tool_access]\ndeny = [\"current_tim\"]", "tool_access.deny.0"),
    ("[skills]\ndir = \"/nowhere/at/all\"", "skills.dir"),
    ("[memory]\nmax_tokens = 10", "memory.max_tokens"),
    ("[[agents]]\nname = \"a\"\ninstruction = \"i\"\ntools = [\"current_tim\"]", "agents.0.tools.0"),
    ("[approvals]\ntimeout_minutes = 0", "approvals.timeout_minutes"),
    ("[approvals.tools.http_send]\ngate = \"auto\"\nwhen = \"args.\"", "approvals.tools.http_send.when"),
    ("[approvals.tools.http_reqest]\ngate = \"auto\"", "did you mean `http_request`?"),
    ("[approvals.tenants.ann.http_reqest]\ngate = \"auto\"", "approvals.tenants.ann.http_reqest"),
    ("[poll]\nmax_concurrent = 0", "poll.max_concurrent"),
    ("[poll.sql.shop]\nurl = \"mysql://h/d\"", "poll.sql.shop.url"),
    ("[poll.redis.shop]\nurl = \"x\"", "poll.redis.shop.url"),
    ("[data_files]\nmax_bytes = 0", "data_files.max_bytes"),
    ("[quotas]\ntasks = 0", "quotas.tasks"),
    ("[budgets.run]\nturns = 0", "budgets.run.turns"),
    ("[vault]\nmaster_keys = [\"x\"]", "vault.master_keys"),
    ("[telemetry]\nlog_level = \"reveille=loud\"", "telemetry.log_level"),
    (
        "[oauth.calendar]\nauthorize_url = \"x\"\ntoken_url = \"https://i/t\"\nclient_id = \"c\"\nhosts = [\"i\"]",
        "oauth.calendar.authorize_url",
    ),
];

#[tokio::test]
async fn check_refuses_every_configuration_that_serve_refuses() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    for (config, at_fault) in REFUSALS {
        std::fs::write(dir.path().join("reveille.toml"), format!("{config}\n")).unwrap();
        let served = shell.run(&["serve", "--listen", "127.0.0.1:0"]).await;
        // `--listen` takes the place of the address at fault
        if !config.contains("listen") {
            assert_eq!(served.code, 1, "{config}\n{}{}", served.out, served.err);
            assert!(served.err.contains(at_fault), "{config}\n{}", served.err);
        }
        let checked = shell.run(&["check", "--json"]).await;
        assert_eq!(checked.code, 1, "{config}\n{}{}", checked.out, checked.err);
        let answer: Value = serde_json::from_str(&checked.out).unwrap();
        let wrong = answer["checks"].as_array().unwrap().iter().filter(|check| check["verdict"] == "wrong");
        let messages: Vec<&str> = wrong.map(|check| check["message"].as_str().unwrap()).collect();
        let naming = messages.iter().filter(|message| message.contains(at_fault)).count();
        assert_eq!(naming, 1, "{config}: one finding names {at_fault}, of {messages:?}");
        if !config.contains("vault") && !config.contains("database") {
            assert!(!dir.path().join("data").exists(), "{config}: a refused start makes nothing");
        }
        let _ = std::fs::remove_dir_all(dir.path().join("data"));
    }
}
