//! Rules of the providers for conversations, which no schema states: each call has its result, at its place.
//!
//! Written apart from the product, from what the providers answer with 400.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::fakes::Wire;

/// The complaints of a provider about the conversation of a request.
pub fn broken_rules(wire: Wire, body: &Value) -> Vec<String> {
    let items = match wire {
        Wire::Chat | Wire::Anthropic => &body["messages"],
        Wire::Responses => &body["input"],
    };
    let items = items.as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    let mut expect = |holds: bool, rule: &str| {
        if !holds {
            found.push(rule.to_owned());
        }
    };
    match wire {
        Wire::Chat => chat(&items, &mut expect),
        Wire::Responses => responses(&items, &mut expect),
        Wire::Anthropic => anthropic(&items, &mut expect),
    }
    found
}

type Expect<'a> = dyn FnMut(bool, &str) + 'a;

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts<'a>(values: impl IntoIterator<Item = &'a Value>, field: &str) -> Vec<&'a str> {
    values.into_iter().map(|value| value[field].as_str().unwrap_or_default()).collect()
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_none_or(|text| text.trim().is_empty())
}

/// An id or a name: of letters, digits, `_` and `-`.
fn is_word(word: &str, longest: usize) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    (1..=longest).contains(&word.len()) && word.chars().all(fits)
}

fn are_distinct(words: &[&str]) -> bool {
    words.iter().collect::<HashSet<_>>().len() == words.len()
}

/// Results directly behind the message with their calls, one for each and no others.
fn chat(messages: &[Value], expect: &mut Expect<'_>) {
    let systems = messages.iter().take_while(|message| message["role"] == "system").count();
    let said = &messages[systems..];
    expect(said.iter().all(|message| message["role"] != "system"), "a system message in the middle");
    expect(said.first().is_some_and(|first| first["role"] == "user"), "a user does not begin");
    expect(said.last().is_some_and(|last| last["role"] != "assistant"), "there is nothing to answer");
    let mut at = 0;
    while let Some(message) = said.get(at) {
        at += 1;
        match message["role"].as_str().unwrap_or_default() {
            "user" => expect(!is_blank(&message["content"]), "a user says nothing"),
            "assistant" if message["tool_calls"].is_null() => {
                expect(!is_blank(&message["content"]), "an assistant says nothing");
            }
            "assistant" => {
                let calls = list(&message["tool_calls"]);
                let results = said[at..].iter().take_while(|message| message["role"] == "tool");
                let results: Vec<&Value> = results.collect();
                at += results.len();
                let (ids, answered) = (texts(calls, "id"), texts(results.iter().copied(), "tool_call_id"));
                expect(!calls.is_empty(), "a list of calls is empty");
                expect(are_distinct(&ids), "two calls have one id");
                expect(ids.iter().all(|id| is_word(id, 40)), "an id is none");
                expect(ids.iter().collect::<HashSet<_>>() == answered.iter().collect(), "calls without results");
                expect(answered.len() == ids.len(), "a call has two results");
                let functions: Vec<&Value> = calls.iter().map(|call| &call["function"]).collect();
                expect(texts(functions.iter().copied(), "name").iter().all(|name| is_word(name, 64)), "a name is none");
                expect(functions.iter().all(|function| function["arguments"].is_string()), "arguments are no text");
                expect(results.iter().all(|result| result["content"].is_string()), "a result is no text");
            }
            _ => expect(false, "a result without its call"),
        }
    }
}

/// Calls of one answer, then their results, before anything else is said.
fn responses(items: &[Value], expect: &mut Expect<'_>) {
    expect(items.first().is_some_and(|first| first["role"] == "user"), "a user does not begin");
    let last = items.last().cloned().unwrap_or_default();
    expect(last["role"] == "user" || last["type"] == "function_call_output", "there is nothing to answer");
    let mut open: Vec<&str> = Vec::new();
    let mut answers = false;
    for (index, item) in items.iter().enumerate() {
        let is_result = item["type"] == "function_call_output";
        if answers && !is_result {
            expect(open.is_empty(), "calls without results");
        }
        answers = is_result;
        match item["type"].as_str().unwrap_or_default() {
            "message" => {
                let parts = list(&item["content"]);
                let says = !is_blank(&item["content"]) || parts.iter().any(|part| !is_blank(&part["text"]));
                expect(says, "a message says nothing");
                expect(open.is_empty() || item["role"] == "assistant", "a user speaks before the results");
            }
            "reasoning" => {
                let follows = items.get(index + 1).is_some_and(|next| {
                    next["role"] == "assistant" || next["type"] == "function_call" || next["type"] == "reasoning"
                });
                expect(follows, "reasoning without what it led to");
                expect(item["encrypted_content"].is_string(), "reasoning that can't be read");
            }
            "function_call" => {
                let id = item["call_id"].as_str().unwrap_or_default();
                expect(is_word(id, 64), "an id is none");
                expect(is_word(item["name"].as_str().unwrap_or_default(), 64), "a name is none");
                expect(item["arguments"].is_string(), "arguments are no text");
                expect(!open.contains(&id), "two calls have one id");
                open.push(id);
            }
            "function_call_output" => {
                let id = item["call_id"].as_str().unwrap_or_default();
                let call = open.iter().position(|call| *call == id);
                expect(call.is_some(), "a result without its call");
                expect(item["output"].is_string(), "a result is no text");
                call.map(|at| open.remove(at));
            }
            _ => expect(false, "an item of no known type"),
        }
    }
    expect(open.is_empty(), "calls without results");
}

/// Roles in turn; results at the beginning of the message behind their calls; each id once.
fn anthropic(messages: &[Value], expect: &mut Expect<'_>) {
    let roles = texts(messages, "role");
    expect(roles.first() == Some(&"user"), "a user does not begin");
    expect(roles.last() == Some(&"user"), "there is nothing to answer");
    expect(roles.windows(2).all(|pair| pair[0] != pair[1]), "roles do not alternate");
    let blocks = |message: &'_ Value, kind: &str| -> Vec<Value> {
        list(&message["content"]).iter().filter(|block| block["type"] == kind).cloned().collect()
    };
    let mut ids = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let content = list(&message["content"]);
        expect(!content.is_empty(), "a message says nothing");
        expect(blocks(message, "text").iter().all(|block| !is_blank(&block["text"])), "a text is empty");
        let signed = |block: &Value| !is_blank(&block["signature"]);
        expect(blocks(message, "thinking").iter().all(signed), "thinking without its signature");
        let results = blocks(message, "tool_result");
        let leads = content.iter().take_while(|block| block["type"] == "tool_result").count();
        expect(leads == results.len(), "a result behind something else");
        let before = index.checked_sub(1).map(|before| blocks(&messages[before], "tool_use")).unwrap_or_default();
        let (called, answered) = (texts(&before, "id"), texts(&results, "tool_use_id"));
        let (calls, answers): (HashSet<_>, HashSet<_>) = (called.iter().collect(), answered.iter().collect());
        expect(calls.is_subset(&answers), "calls without results");
        expect(answers.is_subset(&calls), "a result without its call");
        expect(answered.len() <= called.len(), "a call has two results");
        for call in blocks(message, "tool_use") {
            let id = call["id"].as_str().unwrap_or_default().to_owned();
            expect(is_word(&id, usize::MAX), "an id is none");
            expect(call["input"].is_object(), "arguments are no object");
            expect(call["name"].as_str().is_some_and(|name| (1..=200).contains(&name.len())), "a name is none");
            expect(ids.insert(id), "two calls have one id");
        }
    }
}

/// A conversation with one call, and its result.
fn sound(wire: Wire) -> Vec<Value> {
    match wire {
        Wire::Chat => {
            let function = json!({ "name": "read", "arguments": "{}" });
            vec![
                json!({ "role": "system", "content": "Be brief." }),
                json!({ "role": "user", "content": "Go." }),
                json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "c1", "function": function }] }),
                json!({ "role": "tool", "tool_call_id": "c1", "content": "" }),
            ]
        }
        Wire::Responses => vec![
            json!({ "type": "message", "role": "user", "content": "Go." }),
            json!({ "type": "reasoning", "encrypted_content": "x" }),
            json!({ "type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}" }),
            json!({ "type": "function_call_output", "call_id": "c1", "output": "" }),
        ],
        Wire::Anthropic => vec![
            json!({ "role": "user", "content": [{ "type": "text", "text": "Go." }] }),
            json!({ "role": "assistant", "content": [
                { "type": "thinking", "thinking": "", "signature": "x" },
                { "type": "tool_use", "id": "c1", "name": "read", "input": {} },
            ] }),
            json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": "" }] }),
        ],
    }
}

fn complaints(wire: Wire, items: &[Value]) -> Vec<String> {
    let field = if wire == Wire::Responses { "input" } else { "messages" };
    broken_rules(wire, &json!({ field: items }))
}

/// Each item that is missing, doubled, or out of its place makes a conversation that is refused.
#[test]
fn conversation_that_is_torn_breaks_a_rule_of_every_wire() {
    for wire in Wire::ALL {
        let items = sound(wire);
        assert_eq!(complaints(wire, &items), [""; 0], "{wire:?}");
        // the system message and reasoning may be missing
        let needed: Vec<usize> =
            (0..items.len()).filter(|at| items[*at]["role"] != "system" && items[*at]["type"] != "reasoning").collect();
        for at in &needed {
            let mut torn = items.clone();
            torn.remove(*at);
            assert_ne!(complaints(wire, &torn), [""; 0], "{wire:?} without {}", items[*at]);
        }
        let (call, result) = (needed[1], needed[2]);
        let mut doubled = items.clone();
        doubled.push(items[result].clone());
        assert_ne!(complaints(wire, &doubled), [""; 0], "{wire:?}: a result twice");
        let mut swapped = items.clone();
        swapped.swap(call, result);
        assert_ne!(complaints(wire, &swapped), [""; 0], "{wire:?}: a result before its call");
        for (sound, broken) in [("\"c1\"", "\"functions.read:0\""), ("\"Go.\"", "\" \"")] {
            let text = Value::from(items.clone()).to_string().replace(sound, broken);
            let items: Vec<Value> = serde_json::from_str(&text).expect("JSON");
            assert_ne!(complaints(wire, &items), [""; 0], "{wire:?}: {broken}");
        }
    }
    let twice = [sound(Wire::Anthropic), sound(Wire::Anthropic)[1..].to_vec()].concat();
    assert_eq!(complaints(Wire::Anthropic, &twice), ["two calls have one id"]);
}
