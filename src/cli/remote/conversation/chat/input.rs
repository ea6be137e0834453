//! Questions for input in a chat: each field is asked for, and a server is answered by words.

use serde_json::{Map, Value, json};

use crate::cli::Screen;
use crate::cli::remote::conversation::chat::{ChatLoop, QuestionOutcome, outcome_of};
use crate::cli::remote::conversation::keyboard::InputStop;
use crate::cli::remote::run::answer::print_question;
use crate::cli::screen::text_of;
use crate::domain::approval::reply::typed_value;

/// Words by which the question of a server is answered without a field.
const DECLINE: &str = "/decline";
const CANCEL: &str = "/cancel";
const DONE: &str = "/done";
const SERVER_WORDS: &str = "  /decline tells the server no, /cancel stops its call";

impl ChatLoop {
    /// Asks for what a call of the run lacks.
    pub(super) async fn supply(
        &mut self,
        run: &Value,
        id: &str,
        screen: &mut Screen,
    ) -> anyhow::Result<QuestionOutcome> {
        let mut inputs = run["inputs"].as_array().into_iter().flatten();
        let Some(input) = inputs.find(|input| input["id"] == id) else { return Ok(QuestionOutcome::Answered) };
        print_question(input, screen)?;
        let mut answer = match self.answer_to_input(input, screen).await? {
            Ok(answer) => answer,
            Err(none) => return Ok(QuestionOutcome::Unanswered(none)),
        };
        answer["input_id"] = json!(id);
        let answered = self.client.post(&["v1", "runs", &text_of(&run["id"]), "input"], &answer).await;
        outcome_of(answered.map(drop), screen)
    }

    /// Asks for each field that is awaited. A server that asks is answered by a person's words alone, also where it
    /// awaits no field; it is told no, or its call stopped, by a word.
    async fn answer_to_input(
        &mut self,
        input: &Value,
        screen: &mut Screen,
    ) -> anyhow::Result<Result<Value, InputStop>> {
        let mut awaited: Vec<String> = input["awaited"].as_array().into_iter().flatten().map(text_of).collect();
        let is_of_server = input["server"].is_object();
        if is_of_server {
            screen.line(SERVER_WORDS)?;
        }
        let mut given = Map::new();
        let is_awaited = !awaited.is_empty();
        if is_of_server && !is_awaited {
            awaited.push(DONE.to_owned());
        }
        let mut names = awaited.into_iter().peekable();
        while let Some(name) = names.peek().cloned() {
            let typed = match self.keyboard.line(&format!("{name}: "), screen).await? {
                Ok(typed) => typed,
                Err(none) => return Ok(Err(none)),
            };
            match (typed.trim(), is_of_server, is_awaited) {
                (DECLINE, true, _) => return Ok(Ok(json!({ "action": "decline" }))),
                (CANCEL, true, _) => return Ok(Ok(json!({ "action": "cancel" }))),
                (word, true, false) if word != DONE => continue,
                (_, true, false) => {}
                (value, _, _) => {
                    let field = &input["fields"]["properties"][&name];
                    given.insert(name, typed_value(value, field));
                }
            }
            names.next();
        }
        Ok(Ok(json!({ "fields": given })))
    }
}
