//! Data files of tools, by the real store: what is read of one, who reads it, and what becomes of it.

use std::sync::Arc;

use chrono::TimeDelta;
use reveille::base::id::Tenant;
use reveille::domain::data_file::search::FOUND;
use reveille::domain::data_file::{DataFilePart, DataFileSettings, NewDataFile};
use reveille::domain::quota::Overrides;
use reveille::engine::maintenance::file_cleaner::FileCleaner;
use reveille::engine::service::{NextTick, ServiceLoop};
use reveille::executor::host::{StoreHost, WHOLE_FILES};
use reveille::ports::tool::{HostError, ToolHost};
use reveille::store::{CHUNK_BYTES, Store};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{World, on_both};

on_both! {
    file_is_read_by_pages_across_its_chunks
    lines_that_match_are_found_and_a_search_goes_on_where_one_has_ended
    value_of_json_is_found_by_its_pointer
    values_that_are_asked_for_at_once_are_found_one_after_the_other
    file_of_one_instance_is_read_by_another
    file_of_another_tenant_and_one_that_is_gone_are_the_same_answer
    cleaner_gives_up_what_is_old_and_then_what_is_too_much
    files_that_are_written_and_given_up_are_counted_by_their_reasons
}

/// The answer of the host, asked in the runtime of the instance.
async fn told<T, F>(instance: &Instance, ask: impl FnOnce(StoreHost) -> F) -> Result<T, HostError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, HostError>> + Send + 'static,
{
    let http = instance.http();
    let host = StoreHost::new(instance.store.clone(), http.validator.clone(), Arc::clone(&http.bus));
    instance.on(|_| ask(host)).await
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

/// Keeps a file of ann's.
async fn kept(instance: &Instance, content: impl Into<String>) -> Uuid {
    let file = NewDataFile {
        run_id: Uuid::from_u128(1),
        call_key: Uuid::from_u128(fastrand::u128(..)).to_string(),
        tool: "look".into(),
        media_type: "application/json".into(),
        summary: String::new(),
        content: content.into(),
    };
    told(instance, |host| async move { host.keep_data_file(&tenant("ann"), file).await }).await.unwrap()
}

async fn read(instance: &Instance, of: &'static str, id: Uuid, part: DataFilePart) -> Result<Value, HostError> {
    told(instance, move |host| async move { host.read_data_file(&tenant(of), id, part).await }).await
}

async fn file_is_read_by_pages_across_its_chunks(world: World) {
    let instance = world.instance();
    let text = "é".repeat(CHUNK_BYTES);
    let id = kept(&instance, text.clone()).await;
    let page = |offset: u64, limit: usize| read(&instance, "ann", id, DataFilePart::Page { offset, limit });
    let around = page(CHUNK_BYTES as u64 - 1, 100).await.unwrap();
    let begins = CHUNK_BYTES as u64;
    assert_eq!(
        around,
        json!({
            "file": id, "bytes": text.len(), "media_type": "application/json", "offset": begins,
            "text": "é".repeat(50), "next_offset": begins + 100,
        })
    );
    let across = page(CHUNK_BYTES as u64 - 50, 100).await.unwrap();
    assert_eq!(across["text"], json!("é".repeat(50)));
    let last = page(text.len() as u64 - 10, 100).await.unwrap();
    assert_eq!((&last["text"], &last["next_offset"]), (&json!("é".repeat(5)), &Value::Null));
    let behind = page(u64::MAX, 100).await.unwrap();
    assert_eq!((&behind["text"], &behind["next_offset"]), (&json!(""), &Value::Null));
    instance.crash();
}

async fn lines_that_match_are_found_and_a_search_goes_on_where_one_has_ended(world: World) {
    let instance = world.instance();
    let lines: Vec<String> = (0..60_000).map(|n| format!("line {n}")).collect();
    let text = lines.join("\n");
    let id = kept(&instance, text.clone()).await;
    let grep = |pattern: &str, offset: u64| {
        read(&instance, "ann", id, DataFilePart::Lines { pattern: pattern.into(), offset })
    };
    let one = grep("^line 59999$", 0).await.unwrap();
    let offset = text.rfind("line 59999").unwrap();
    assert_eq!(
        (&one["lines"], &one["next_offset"]),
        (&json!([{ "offset": offset, "text": "line 59999" }]), &Value::Null)
    );
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let part = grep("7777$", at).await.unwrap();
        let lines = part["lines"].as_array().unwrap();
        assert!(lines.len() <= FOUND);
        found.extend(lines.iter().map(|line| line["text"].as_str().unwrap().to_owned()));
        match part["next_offset"].as_u64() {
            Some(next) => at = next,
            None => break,
        }
    }
    let expected: Vec<String> = lines.iter().filter(|line| line.ends_with("7777")).cloned().collect();
    assert_eq!(found, expected);
    let odd = grep("(", 0).await;
    assert!(matches!(odd, Err(HostError::Invalid(_))), "{odd:?}");
    instance.crash();
}

async fn value_of_json_is_found_by_its_pointer(world: World) {
    let instance = world.instance();
    let rows: Vec<Value> = (0..20_000).map(|id| json!({ "id": id, "name": "n".repeat(20) })).collect();
    let id = kept(&instance, format!("{:#}", json!({ "rows": rows }))).await;
    let value = |pointer: &str, offset: u64| {
        let part = DataFilePart::Value { pointer: pointer.into(), offset, limit: 500 };
        read(&instance, "ann", id, part)
    };
    let found = value("/rows/19999", 0).await.unwrap();
    assert_eq!(
        (&found["value"], &found["next_offset"]),
        (&json!({ "id": 19999, "name": "n".repeat(20) }), &Value::Null)
    );
    let long = value("/rows", 0).await.unwrap();
    assert_eq!(long["next_offset"], 500);
    assert!(long["value"].as_str().unwrap().starts_with('['), "{long}");
    let more = value("/rows", 500).await.unwrap();
    assert_eq!((&more["offset"], &more["next_offset"]), (&json!(500), &json!(1000)));
    let none = value("/rows/20000", 0).await;
    assert_eq!(none, Err(HostError::Conflict("the file has no value at `/rows/20000`".into())));
    let odd = value("rows", 0).await;
    assert!(matches!(odd, Err(HostError::Invalid(_))), "{odd:?}");
    instance.crash();
}

async fn values_that_are_asked_for_at_once_are_found_one_after_the_other(world: World) {
    let instance = world.instance();
    let id = kept(&instance, json!({ "rows": [1, 2, 3] }).to_string()).await;
    let all = told(&instance, move |host| async move {
        let host = &host;
        let value = |row: usize| {
            let part = DataFilePart::Value { pointer: format!("/rows/{}", row % 3), offset: 0, limit: 500 };
            async move { host.read_data_file(&tenant("ann"), id, part).await }
        };
        Ok(futures::future::join_all((0..3 * WHOLE_FILES).map(value)).await)
    });
    let all: Vec<Value> = all.await.unwrap().into_iter().map(|read| read.unwrap()["value"].take()).collect();
    let expected: Vec<Value> = (0..3 * WHOLE_FILES).map(|row| json!(row % 3 + 1)).collect();
    assert_eq!(all, expected, "none waits for ever, and none is refused");
    instance.crash();
}

async fn file_of_one_instance_is_read_by_another(world: World) {
    // one process alone may have the file of SQLite
    if !world.is_postgres() {
        return;
    }
    let (first, second) = (world.instance(), world.instance());
    let content: String =
        (0..CHUNK_BYTES).map(|at| char::from(b'a' + (at % 23) as u8)).chain("the end".chars()).collect();
    let id = kept(&first, content.clone()).await;
    first.crash();
    let part = DataFilePart::Page { offset: CHUNK_BYTES as u64 - 10, limit: 500 };
    let read = read(&second, "ann", id, part).await.unwrap();
    assert_eq!((&read["text"], &read["next_offset"]), (&json!(content[CHUNK_BYTES - 10..]), &Value::Null));
    second.crash();
}

async fn file_of_another_tenant_and_one_that_is_gone_are_the_same_answer(world: World) {
    let instance = world.instance();
    let id = kept(&instance, "text").await;
    let page = || DataFilePart::Page { offset: 0, limit: 100 };
    assert_eq!(read(&instance, "bob", id, page()).await, Err(HostError::NotFound));
    assert_eq!(read(&instance, "ann", Uuid::from_u128(7), page()).await, Err(HostError::NotFound));
    assert_eq!(read(&instance, "ann", id, page()).await.unwrap()["text"], "text");
    instance.crash();
}

/// Rounds of a cleaner until it rests.
async fn clean(store: Store, settings: DataFileSettings) {
    let cleaner = FileCleaner::new(store.clone(), settings);
    while let NextTick::At(next) = cleaner.tick().await.unwrap() {
        if next > store.clock().now() + TimeDelta::minutes(30) {
            return;
        }
    }
}

async fn cleaner_gives_up_what_is_old_and_then_what_is_too_much(world: World) {
    let instance = world.instance();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(kept(&instance, "x".repeat(100)).await);
    }
    let settings = DataFileSettings { max_bytes: 400, ..DataFileSettings::default() };
    let cleaned = settings.clone();
    instance.on(move |store| async move { clean(store, cleaned).await }).await;
    // 500 are more than 400: they are given up until 320 are left at most
    let bytes = instance.on(|store| async move { store.data_file_bytes().await }).await.unwrap();
    assert_eq!(bytes, 300);
    let page = || DataFilePart::Page { offset: 0, limit: 100 };
    assert_eq!(read(&instance, "ann", ids[0], page()).await, Err(HostError::NotFound));
    assert!(read(&instance, "ann", ids[4], page()).await.is_ok());
    world.advance(25.0 * 3600.0);
    instance.on(move |store| async move { clean(store, settings).await }).await;
    assert_eq!(instance.on(|store| async move { store.data_file_bytes().await }).await.unwrap(), 0);
    instance.crash();
}

async fn files_that_are_written_and_given_up_are_counted_by_their_reasons(world: World) {
    let instance = world.instance();
    let overrides = Overrides { data_file_bytes: Some(2_500), ..Overrides::default() };
    instance.on(move |store| async move { store.put_quotas("ann", &overrides, "an operator").await }).await.unwrap();
    // the third takes the place of the first
    for _ in 0..3 {
        kept(&instance, "x".repeat(1_000)).await;
    }
    let settings = DataFileSettings { max_bytes: 1_500, ..DataFileSettings::default() };
    let cleaned = settings.clone();
    instance.on(move |store| async move { clean(store, cleaned).await }).await;
    world.advance(25.0 * 3600.0);
    instance.on(move |store| async move { clean(store, settings).await }).await;
    let text = instance.page("/metrics").await;
    for line in [
        "reveille_data_files_written_total 3",
        "reveille_data_file_bytes_written_total 3000",
        r#"reveille_data_files_removed_total{reason="quota"} 1"#,
        r#"reveille_data_files_removed_total{reason="size"} 1"#,
        r#"reveille_data_files_removed_total{reason="age"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in:\n{text}");
    }
    instance.crash();
}
