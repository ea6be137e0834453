//! Skills: named first, read when they are used, kept in the conversation, and narrowing what is called meanwhile.

use std::path::{Path, PathBuf};

use reveille::base::clock::pause;
use reveille::domain::approval::QuestionKind;
use reveille::domain::run::ResultNotice;
use reveille::domain::run::transcript::{Compaction, CompactionKind, TranscriptEntry, TranscriptMessage};
use reveille::ports::llm::ModelRequest;
use reveille::ports::llm::fallback::ChainLink;
use reveille::ports::tool::ToolOutput;
use serde_json::{Value, json};

use super::delegation::{answered, approve, asks_people, settle, suspended};
use super::harness::{AgentHarness, FakeModel, FakeTool, Memory, call, calls, link, models, models_of, says};

/// A folder of skills that goes with the test.
pub struct SkillFolder(PathBuf);

impl SkillFolder {
    pub fn new() -> SkillFolder {
        let folder = SkillFolder(std::env::temp_dir().join(format!("reveille-skills-{:016x}", fastrand::u64(..))));
        folder.skill("booking", "allowed-tools: look\nmetadata:\n  model: cheap\n", "Look first, then book.");
        folder.skill("dates", "", "Write dates as in Rome.");
        folder.skill("places", "", "Name places in full.");
        folder.skill("prices", "", "In euros.");
        folder.file("booking/references/airports.md", "VIE is Vienna.");
        folder
    }

    fn skill(&self, name: &str, properties: &str, instructions: &str) {
        self.file(
            &format!("{name}/SKILL.md"),
            &format!("---\nname: {name}\ndescription: For {name}.\n{properties}---\n{instructions}"),
        );
    }

    fn file(&self, path: &str, text: &str) {
        let file = self.0.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SkillFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tools() -> Vec<FakeTool> {
    vec![FakeTool::echo("look"), FakeTool::echo("pay")]
}

fn uses(id: &str, name: &str) -> Result<reveille::ports::llm::ModelAnswer, reveille::ports::llm::LlmError> {
    calls(vec![call(id, "use_skill", json!({ "name": name }))])
}

fn offered(request: &ModelRequest) -> Vec<String> {
    request.tools.iter().map(|tool| tool.name.clone()).collect()
}

/// The words of a request, one message after the other.
fn words(request: &ModelRequest) -> String {
    let text = |message: &TranscriptMessage| match message {
        TranscriptMessage::System { text, .. } | TranscriptMessage::User { text, .. } => text.clone(),
        TranscriptMessage::Tool { notices, content, .. } => format!("{}{content}", ResultNotice::joined(notices)),
        _ => String::new(),
    };
    request.messages.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn result(stage: &AgentHarness, id: &str) -> (String, bool) {
    let found = stage.results().into_iter().find(|(call, ..)| call == id).expect("a result");
    (found.1, found.2)
}

#[tokio::test]
async fn skill_is_named_first_then_read_and_narrows_tools_and_model_until_it_is_left() {
    let folder = SkillFolder::new();
    let answers = vec![
        uses("u", "booking"),
        calls(vec![call("p", "pay", json!({})), call("l", "look", json!({ "at": 1 }))]),
        calls(vec![call("f", "read_skill_file", json!({ "skill": "booking", "path": "references/airports.md" }))]),
        calls(vec![call("v", "leave_skill", json!({ "name": "booking" }))]),
        calls(vec![call("p2", "pay", json!({}))]),
        says("done"),
    ];
    let mut stage = AgentHarness::with_skills(answers, tools(), folder.path());
    let (main, cheap) = (stage.model.clone(), FakeModel::of(vec![]));
    // while it is active the other model answers
    let mine = main.answers.lock().unwrap().drain(1..4).collect();
    *cheap.answers.lock().unwrap() = mine;
    stage.agent.models =
        models(vec![("main", main.clone()), ("cheap", cheap.clone())], &stage.agent.settings, &stage.clock);
    assert_eq!(stage.answer("book it").await.response, "done");
    let active = cheap.requests.lock().unwrap().clone();
    let [first, after, _]: [ModelRequest; 3] =
        main.requests.lock().unwrap().clone().try_into().expect("three requests");
    let catalogue = "Your skills, whose instructions use_skill shows:\n- booking: For booking.\n- dates: For dates.\n";
    assert!(words(&first).contains(catalogue) && !words(&first).contains("Look first"), "{}", words(&first));
    assert_eq!(offered(&first), ["look", "pay", "use_skill", "leave_skill", "read_skill_file"]);
    assert_eq!(active.len(), 3);
    assert!(active.iter().all(|request| offered(request) == ["look", "use_skill", "leave_skill", "read_skill_file"]));
    let told = words(&active[0]);
    assert!(
        told.contains("[Skill booking] Follow these instructions until you leave the skill.\nLook first, then book."),
        "{told}"
    );
    assert!(told.contains("references/airports.md"), "{told}");
    assert_eq!(offered(&after), offered(&first));
    let (refused, is_error) = result(&stage, "p");
    assert!(
        is_error && refused.contains("code: skill_limits") && refused.contains("(booking) allow only: look"),
        "{refused}"
    );
    assert!(!result(&stage, "l").1 && !result(&stage, "p2").1);
    assert!(words(&active[2]).contains("[Skill booking, references/airports.md, page 1 of 1]\nVIE is Vienna."));
}

#[tokio::test]
async fn skills_use_each_other_in_no_circle_and_no_more_than_three_at_once() {
    let folder = SkillFolder::new();
    let answers = vec![
        uses("1", "dates"),
        uses("2", "places"),
        uses("twice", "places"),
        uses("circle", "dates"),
        uses("unknown", "place"),
        calls(vec![
            call("a", "use_skill", json!({ "name": "prices" })),
            call("b", "leave_skill", json!({ "name": "places" })),
        ]),
        uses("3", "prices"),
        uses("fourth", "booking"),
        calls(vec![call("none", "leave_skill", json!({ "name": "booking" }))]),
        says("done"),
    ];
    let stage = AgentHarness::with_skills(answers, tools(), folder.path());
    stage.answer("go").await;
    for (id, words) in [
        ("twice", "the skill places is active already"),
        ("circle", "skills use each other in a circle: dates → places → dates"),
        ("unknown", "there is no skill `place`; did you mean `places`?"),
        ("a", "activate or leave one skill a turn"),
        ("b", "activate or leave one skill a turn"),
        ("fourth", "at most 3 skills are active at once: dates → places → prices"),
        ("none", "the skill `booking` is not active"),
    ] {
        let (text, is_error) = result(&stage, id);
        assert!(is_error && text.contains(words), "{id}: {text}");
    }
    assert!(["1", "2", "3"].iter().all(|id| !result(&stage, id).1));
}

#[tokio::test]
async fn active_skill_is_put_back_once_its_entry_is_shown_no_more_wherever_the_run_goes_on() {
    let folder = SkillFolder::new();
    let stage = AgentHarness::with_skills(
        vec![uses("u", "booking"), calls(vec![call("l", "look", json!({}))])],
        tools(),
        folder.path(),
    );
    let incoming = stage.incoming("book it");
    let mut handling = Box::pin(stage.agent.handle_message(&incoming));
    for _ in 0..1_000 {
        assert!(futures::poll!(&mut handling).is_pending());
        tokio::task::yield_now().await;
    }
    drop(handling); // the process dies while its model has not answered yet
    assert_eq!(stage.model.asked(), 3);
    let mut entries = stage.store.entries.lock().unwrap().clone();
    let last = entries.last().unwrap().clone();
    let used = entries
        .iter()
        .position(|entry| matches!(&entry.message, TranscriptMessage::Tool { name, .. } if name == "use_skill"));
    let to = entries[used.expect("the skill was used")].seq;
    let by = CompactionKind::Dropped;
    let dropped = TranscriptMessage::Compaction(Compaction { from: 2, to, pinned: vec![], by });
    entries.push(TranscriptEntry { seq: last.seq + 1, message: dropped, tool_record: None, ..last });
    let elsewhere = AgentHarness::with_skills(vec![says("done")], tools(), folder.path());
    let elsewhere = AgentHarness { store: Memory::of(entries.clone()), ..elsewhere };
    assert_eq!(elsewhere.answer("book it").await.response, "done");
    let request = elsewhere.model.requests.lock().unwrap()[0].clone();
    assert_eq!(words(&request).matches("Look first, then book.").count(), 1, "{}", words(&request));
    assert_eq!(offered(&request), ["look", "use_skill", "leave_skill", "read_skill_file"], "and its limits hold");

    std::fs::remove_dir_all(folder.path().join("booking")).unwrap();
    let without = AgentHarness::with_skills(vec![says("done")], tools(), folder.path());
    let without = AgentHarness { store: Memory::of(entries), ..without };
    assert_eq!(without.answer("book it").await.response, "done");
    let request = without.model.requests.lock().unwrap()[0].clone();
    assert_eq!(offered(&request), ["use_skill", "leave_skill", "read_skill_file"], "what it allowed is not known");
}

#[tokio::test]
async fn skill_narrows_no_call_of_the_turn_that_activates_it_wherever_that_goes_on() {
    let folder = SkillFolder::new();
    let turn = vec![call("u", "use_skill", json!({ "name": "booking" })), call("p", "pay", json!({}))];
    let tools = vec![FakeTool::echo("look"), asks_people(FakeTool::echo("pay"))];
    let stage = AgentHarness::with_skills(vec![calls(turn), says("done")], tools, folder.path());
    assert_eq!(suspended(&stage).await.asks.len(), 1);
    settle(&stage, QuestionKind::Approval, approve);
    assert_eq!(answered(&stage).await.response, "done");
    assert!(!result(&stage, "p").1, "{}", result(&stage, "p").0);
    let after = stage.model.requests.lock().unwrap().last().unwrap().clone();
    assert_eq!(offered(&after), ["look", "use_skill", "leave_skill", "read_skill_file"]);
}

#[tokio::test]
async fn file_outside_of_a_skill_is_not_read_and_an_agent_sees_the_skills_that_it_names() {
    let folder = SkillFolder::new();
    let read = |id: &str, path: &str, page: Value| {
        call(id, "read_skill_file", json!({ "skill": "booking", "path": path, "page": page }))
    };
    folder.file("booking/long.md", &"x".repeat(30_001));
    let answers = vec![
        calls(vec![
            read("out", "../dates/SKILL.md", json!(1)),
            read("near", "references/airport.md", json!(1)),
            read("last", "long.md", json!(2)),
            read("beyond", "long.md", json!(3)),
            call("foreign", "read_skill_file", json!({ "skill": "dates", "path": "SKILL.md" })),
        ]),
        uses("other", "dates"),
        says("done"),
    ];
    let stage = AgentHarness::with_skills(answers, tools(), folder.path());
    let mut incoming = stage.incoming("go");
    incoming.skills = Some(vec!["booking".into()]);
    super::harness::passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
    assert!(result(&stage, "out").0.contains("has no file `../dates/SKILL.md`"));
    assert!(result(&stage, "near").0.contains("did you mean `references/airports.md`?"));
    assert_eq!(result(&stage, "last"), ("Page 2 of 2.".into(), false));
    assert!(result(&stage, "beyond").0.contains("has 2 pages"));
    for id in ["other", "foreign"] {
        assert!(result(&stage, id).0.contains("there is no skill `dates`; there are booking"), "{id}");
    }
    let first = stage.model.requests.lock().unwrap()[0].clone();
    assert!(!words(&first).contains("- dates"), "{}", words(&first));
}

#[tokio::test(flavor = "multi_thread")]
async fn skill_that_is_added_is_found_within_seconds() {
    let folder = SkillFolder::new();
    let stage = AgentHarness::with_skills(vec![], tools(), folder.path());
    folder.skill("new", "", "New.");
    let names = || stage.agent.skills.current().names().map(str::to_owned).collect::<Vec<_>>();
    assert!(!names().contains(&"new".to_owned()), "a look is good for a while");
    stage.clock.advance(chrono::TimeDelta::seconds(10));
    let begun = std::time::Instant::now();
    while !names().contains(&"new".to_owned()) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30));
        pause(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn model_of_a_skill_is_measured_by_its_own_window() {
    let folder = SkillFolder::new();
    let long = FakeTool::new("look", |_, _| async { Ok(ToolOutput::text("x ".repeat(6_000))) });
    let mut stage = AgentHarness::with_skills(vec![], vec![long], folder.path());
    let look = |id: &str| calls(vec![call(id, "look", json!({ "at": id }))]);
    let main = FakeModel::of(vec![look("before"), uses("u", "booking")]);
    let cheap = FakeModel::of(vec![look("within"), says("done")]);
    let small = ChainLink { context_token_limit: Some(8_000), ..link("cheap", cheap.clone()) };
    stage.agent.models = models_of(vec![link("main", main), small], &stage.agent.settings, &stage.clock);
    assert_eq!(stage.answer("book it").await.response, "done");
    assert_eq!(cheap.asked(), 2);
    let length = |id: &str| result(&stage, id).0.chars().count();
    assert!(length("before") == 12_000 && length("within") < 12_000, "{} {}", length("before"), length("within"));
}
