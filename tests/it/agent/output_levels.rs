//! How much of a result the model is shown, and where the rest of it goes.

use std::sync::Arc;

use reveille::agent::{AppendError, Settings};
use reveille::domain::data_file::FILE_BYTES;
use reveille::domain::run::ResultNotice;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{LlmError, ModelAnswer};
use reveille::ports::tool::access::ToolAccess;
use reveille::ports::tool::output::{DefaultLevel, OutputLevel};
use reveille::ports::tool::{Definition, HostError, Tool, ToolOutput, ToolRegistry};
use serde_json::{Value, json};
use uuid::Uuid;

use super::harness::{AgentHarness, FakeModel, FakeTool, call, calls, models, says, start};

/// A tool that answers so many rows, and the arguments that it got.
fn rows(count: usize, level: Option<DefaultLevel>) -> FakeTool {
    let rows = FakeTool::new("rows", move |_, arguments| async move {
        let rows: Vec<Value> = (0..count).map(|id| json!({ "id": id, "name": "x".repeat(20) })).collect();
        Ok(ToolOutput::json(json!({ "asked": arguments, "rows": rows })))
    });
    rows.with(|tool| tool.output_level = level)
}

/// A tool that answers a text of so many bytes.
fn long(bytes: usize) -> FakeTool {
    FakeTool::new("long", move |_, _| async move { Ok(ToolOutput::text("x".repeat(bytes))) })
}

/// Without it nobody could read a data file.
fn reader() -> FakeTool {
    FakeTool::echo("read_data_file")
}

/// One turn for each of these calls.
fn turns(asked: &[(&str, Value)]) -> Vec<Result<ModelAnswer, LlmError>> {
    let turn = |(number, (name, arguments)): (usize, &(&str, Value))| {
        calls(vec![call(&format!("c{number}"), name, arguments.clone())])
    };
    asked.iter().enumerate().map(turn).chain([says("done")]).collect()
}

fn content(stage: &AgentHarness, call: usize) -> String {
    stage.results()[call].1.clone()
}

/// The words of the service before the result of a call.
fn notice(stage: &AgentHarness, call: usize) -> String {
    let results = stage.store.messages().into_iter().filter_map(|message| match message {
        TranscriptMessage::Tool { notices, .. } => Some(ResultNotice::joined(&notices).into_owned()),
        _ => None,
    });
    results.collect::<Vec<_>>().swap_remove(call)
}

#[tokio::test]
async fn call_chooses_its_level_and_the_tool_does_not_hear_of_it() {
    let asked = |arguments| ("rows", arguments);
    let levels = [
        asked(json!({ "q": 1 })),
        asked(json!({ "q": 1, "output_level": "brief" })),
        asked(json!({ "q": 1, "output_level": "full" })),
        asked(json!({ "q": 1, "output_level": "most" })),
    ];
    let stage = AgentHarness::new(turns(&levels), vec![rows(40, Some(DefaultLevel::Auto))]);
    stage.answer("go").await;
    let standard = content(&stage, 0);
    let lines: Vec<&str> = standard.lines().collect();
    assert_eq!((lines[0], lines[4], lines.len()), ("40 items in /rows", "37 more", 5), "{standard}");
    assert!(lines[1].starts_with("- {\"id\":0,"), "{standard}");
    let hint = notice(&stage, 0);
    assert!(
        hint.starts_with("[standard: shortened from ") && hint.ends_with("\"output_level\": \"full\" for all]\n\n"),
        "{hint}"
    );
    assert_eq!(content(&stage, 1), "40 items in /rows");
    assert!(notice(&stage, 1).starts_with("[brief: shortened from "), "{}", notice(&stage, 1));
    assert_eq!(notice(&stage, 2), "");
    let full: Value = serde_json::from_str(&content(&stage, 2)).unwrap();
    assert_eq!((full["rows"].as_array().unwrap().len(), &full["asked"]), (40, &json!({ "q": 1 })));
    assert!(stage.results()[3].2, "{}", content(&stage, 3));
    let requests = stage.model.requests.lock().unwrap();
    let parameters = &requests[0].tools[0].parameters;
    assert_eq!(parameters["properties"]["output_level"]["enum"], json!(["brief", "standard", "full"]));
    assert_eq!(stage.host.files.lock().unwrap().len(), 0, "nobody could read a file");
}

#[tokio::test]
async fn small_result_and_that_of_a_tool_without_levels_are_shown_as_they_are() {
    let stage = AgentHarness::new(turns(&[("rows", json!({}))]), vec![rows(5, Some(DefaultLevel::Auto))]);
    stage.answer("go").await;
    let shown: Value = serde_json::from_str(&content(&stage, 0)).unwrap();
    assert_eq!(shown["rows"].as_array().unwrap().len(), 5);

    let stage = AgentHarness::new(turns(&[("rows", json!({ "output_level": "brief" }))]), vec![rows(400, None)]);
    stage.answer("go").await;
    let shown: Value = serde_json::from_str(&content(&stage, 0)).unwrap();
    assert_eq!(shown["rows"].as_array().unwrap().len(), 400);
    assert_eq!(shown["asked"], json!({ "output_level": "brief" }), "its own argument, if it has one");
}

#[tokio::test]
async fn results_are_brief_while_the_context_is_nearly_full() {
    let settings = |limit| Settings { context_token_limit: limit, ..Settings::default() };
    for (limit, expected) in [(1_000_000, "[standard: "), (1_000, "[brief: ")] {
        let tools = vec![rows(40, Some(DefaultLevel::Auto))];
        let stage = AgentHarness::with_settings(turns(&[("rows", json!({}))]), tools, settings(limit));
        stage.answer(&"word ".repeat(760)).await;
        assert!(notice(&stage, 0).starts_with(expected), "{limit}: {}", notice(&stage, 0));
    }
}

#[tokio::test]
async fn usual_level_is_that_of_the_settings() {
    let settings = Settings { output_level: OutputLevel::Brief, ..Settings::default() };
    let tools = vec![rows(40, Some(DefaultLevel::Auto))];
    let stage = AgentHarness::with_settings(turns(&[("rows", json!({}))]), tools, settings);
    stage.answer("go").await;
    assert!(notice(&stage, 0).starts_with("[brief: "));
}

#[tokio::test]
async fn result_over_a_mebibyte_is_in_a_data_file_and_its_beginning_is_shown() {
    const LARGE: usize = 1 << 20;
    // at the bound the level decides
    let level = |tool: &mut Definition| tool.output_level = Some(DefaultLevel::Standard);
    let stage = AgentHarness::new(turns(&[("long", json!({}))]), vec![long(LARGE).with(level), reader()]);
    stage.answer("go").await;
    assert!(stage.host.files.lock().unwrap().is_empty());
    let stage = AgentHarness::new(turns(&[("long", json!({}))]), vec![long(LARGE + 1).with(level), reader()]);
    let result = stage.answer("go").await;
    let file = stage.host.files.lock().unwrap().remove(0);
    assert_eq!((file.content.len(), &*file.media_type, file.tool.as_str()), (LARGE + 1, "text/plain", "long"));
    let reference = notice(&stage, 0);
    let bytes = LARGE + 1;
    let begin = format!("[Data file {}: all {bytes} bytes of this result, text/plain. ", Uuid::from_u128(1));
    assert!(reference.starts_with(&begin), "{reference}");
    assert!(reference.ends_with("with read_data_file.]\n\n"), "{reference}");
    let shown = content(&stage, 0);
    let (summary, beginning) = shown.split_once("\n\n").unwrap();
    assert_eq!((summary, beginning), (file.summary.as_str(), format!("{}…", "x".repeat(499)).as_str()));
    assert_eq!(result.tool_calls[0].result_chars, LARGE + 1);
}

#[tokio::test]
async fn result_that_would_be_cut_is_in_a_data_file_and_as_much_as_fits_is_shown() {
    // 30 % of 10,000 tokens of four characters
    let settings = || Settings { context_token_limit: 10_000, ..Settings::default() };
    for (bytes, files) in [(12_000, 0), (12_001, 1)] {
        let tools = vec![long(bytes), reader()];
        let stage = AgentHarness::with_settings(turns(&[("long", json!({}))]), tools, settings());
        stage.answer("go").await;
        assert_eq!(stage.host.files.lock().unwrap().len(), files, "{bytes}");
        let shown = content(&stage, 0);
        assert_eq!(notice(&stage, 0).starts_with("[Data file "), files == 1);
        assert_eq!(shown.ends_with("\n[...truncated]"), files == 1);
    }
    // who may not read files is shown what fits, as before
    let stage = AgentHarness::with_settings(turns(&[("long", json!({}))]), vec![long(12_001)], settings());
    stage.answer("go").await;
    assert_eq!(content(&stage, 0), format!("{}\n[...truncated]", "x".repeat(12_000)));
}

#[tokio::test]
async fn full_that_is_asked_for_is_shown_whole_and_is_in_a_data_file_unless_it_is_small() {
    let full = || turns(&[("rows", json!({ "output_level": "full" }))]);
    for (count, files) in [(5, 0), (40, 1)] {
        let stage = AgentHarness::new(full(), vec![rows(count, Some(DefaultLevel::Auto)), reader()]);
        stage.answer("go").await;
        let kept = stage.host.files.lock().unwrap();
        assert_eq!(kept.len(), files, "{count}");
        let shown = content(&stage, 0);
        let read: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["rows"].as_array().unwrap().len(), count);
        if let [file] = &kept[..] {
            assert_eq!((file.content.as_str(), &*file.media_type), (shown.as_str(), "application/json"));
            assert_eq!(file.summary, "40 items in /rows; the first: an object with 2 fields: id, name");
        }
    }
}

#[tokio::test]
async fn result_that_can_not_be_kept_says_why_and_one_with_a_secret_is_kept_without_it() {
    let stage = AgentHarness::new(turns(&[("long", json!({}))]), vec![long(200_000), reader()]);
    *stage.host.failure.lock().unwrap() = Some(HostError::Conflict("there is no room".into()));
    stage.answer("go").await;
    let shown = content(&stage, 0);
    assert_eq!(notice(&stage, 0), "[No data file was written: there is no room]\n\n");
    assert!(shown.starts_with("xxx"), "{}", &shown[..80]);
    assert!(shown.ends_with("\n[...truncated]"));

    let leaky = FakeTool::new("long", |_, _| async {
        Ok(ToolOutput::text(format!("the key is s3cret-4711 {}", "x".repeat(200_000))))
    });
    let stage = AgentHarness::new(turns(&[("long", json!({}))]), vec![leaky, reader()]);
    let incoming = stage.incoming("go");
    incoming.used_secrets.add(["s3cret-4711"].into_iter());
    stage.agent.handle_message(&incoming).await.unwrap();
    let kept = stage.host.files.lock().unwrap();
    assert_eq!(kept.len(), 1, "it is kept without the secret");
    assert!(kept[0].content.starts_with("the key is [redacted] xxx"), "{}", &kept[0].content[..80]);
}

#[tokio::test]
async fn result_is_kept_at_the_longest_file_and_not_one_byte_beyond_it() {
    for (bytes, files) in [(FILE_BYTES, 1), (FILE_BYTES + 1, 0)] {
        let stage = AgentHarness::new(turns(&[("long", json!({}))]), vec![long(bytes), reader()]);
        stage.answer("go").await;
        assert_eq!(stage.host.files.lock().unwrap().len(), files, "{bytes}");
        let notice = notice(&stage, 0);
        assert_eq!(notice.starts_with("[No data file was written: the result has "), files == 0, "{notice}");
    }
}

#[tokio::test]
async fn file_is_kept_before_the_row_that_names_it_and_once_for_its_call() {
    let tools = || vec![long(200_000), reader()];
    let mut stage = AgentHarness::new(turns(&[("long", json!({}))]), tools());
    *stage.store.failures.lock().unwrap() = [Some(AppendError::LeaseLost)].into();
    // time stands still: no call is a slow one, whose intent would be stored by itself
    assert_eq!(stage.agent.handle_message(&stage.incoming("go")).await, Err(RunError::LeaseLost));
    assert!(stage.results().is_empty(), "no row names it");
    let first = stage.host.files.lock().unwrap()[0].call_key.clone();
    // the call is carried out once more, and its file takes the place of that one
    stage.model = FakeModel::of(turns(&[("long", json!({}))]));
    let settings = stage.agent.settings.clone();
    stage.agent.models = models(vec![("main", stage.model.clone())], &settings, &stage.clock);
    stage.answer("go").await;
    assert_eq!(stage.host.files.lock().unwrap()[1].call_key, first);
}

#[tokio::test]
async fn same_large_results_are_a_repetition_whatever_files_they_are_in() {
    let asked: Vec<_> = (0..4).map(|_| ("long", json!({}))).collect();
    let stage = AgentHarness::new(turns(&asked), vec![long(200_000), reader()]);
    let failed = stage.handle("go").await;
    assert!(matches!(&failed, Err(RunError::Fail { fault }) if fault.code == "loop"), "{failed:?}");
}

#[tokio::test]
async fn result_that_was_kept_says_when_it_came_from_its_tool() {
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(rows(1, None))];
    let policies = serde_json::from_value(json!({ "rows": { "cache": true } })).unwrap();
    let mut stage = AgentHarness::new(turns(&[("rows", json!({}))]), vec![]);
    stage.agent.tools = Arc::new(ToolRegistry::new(tools).unwrap().governed(&policies, &ToolAccess::default()));
    stage.answer("go").await;
    stage.clock.advance(chrono::TimeDelta::minutes(5));
    stage.store.entries.lock().unwrap().clear();
    stage.model.answers.lock().unwrap().extend(turns(&[("rows", json!({}))]));
    stage.answer("go").await;
    let fetched = stage.store.messages().into_iter().find_map(|message| match message {
        TranscriptMessage::Tool { fetched_at, .. } => fetched_at,
        _ => None,
    });
    assert_eq!(fetched, Some(start()));
}
