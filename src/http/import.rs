//! Tasks by the thousand: NDJSON in, a report out.
//!
//! The body is read as it comes and stored a batch at a time, so what is held is one batch, however long the import is.
//! Each line stands for itself: one that is wrong is reported, and keeps no other out. What was stored before the
//! connection broke, or the time was over, stays; where lines have keys, to send all of it again adds what is missing.

use axum::Json;
use axum::body::BodyDataStream;
use axum::extract::{FromRequest, Request, State as Held};
use axum::http::header::CONTENT_LENGTH;
use futures::StreamExt;
use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::http::State;
use crate::http::auth::Caller;
use crate::http::error::{ApiError, Problem};
use crate::http::query::Query;
use crate::http::schema;
use crate::http::server::Limits;
use crate::id;
use crate::invalid::{Faults, InvalidSpec};
use crate::store::{NewTask, StoreError};
use crate::task::{Draft, Task};
use crate::token::Permission;

/// Tasks that are stored at once, and how long they may be together, in bytes.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1024 * 1024;
/// Bad lines that are described; the rest are counted.
const DESCRIBED: usize = 1_000;

/// Where it is asked for; its time limit is of its own.
pub const PATH: &str = "/v1/tasks/import";

/// What became of an import.
#[derive(Debug, Clone, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Imported {
    /// Lines that were read; empty ones are not counted.
    pub lines: u64,
    /// Tasks that were stored now.
    pub created: u64,
    /// Lines whose key the tenant has already: nothing was changed.
    pub kept: u64,
    /// Lines that are no task.
    pub bad: u64,
    /// The first 1,000 bad lines, in their order.
    pub errors: Vec<BadLine>,
}

/// A line that was not stored, and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct BadLine {
    /// Counted from 1, empty lines included.
    pub line: u64,
    pub errors: Vec<InvalidSpec>,
}

/// The body of an import, not read yet.
pub struct Lines {
    body: BodyDataStream,
    limits: Limits,
    /// What has come and is no whole line yet.
    rest: Vec<u8>,
    read: usize,
    ended: bool,
    /// The line that is coming is too long: the rest of it is passed over.
    skipping: bool,
}

/// What stands between two line ends.
enum Line {
    Text(Vec<u8>),
    TooLong,
}

impl FromRequest<State> for Lines {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &State) -> Result<Lines, ApiError> {
        let limits = state.limits;
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limits.import_bytes as u64) {
            return Err(ApiError::TooLarge { limit: limits.import_bytes });
        }
        let body = request.into_body().into_data_stream();
        Ok(Lines { body, limits, rest: Vec::new(), read: 0, ended: false, skipping: false })
    }
}

impl Lines {
    /// The next line, without its end; `None` behind the last.
    async fn next(&mut self) -> Result<Option<Line>, ApiError> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.rest[seen..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=seen + end).collect();
                line.pop();
                let fits = line.len() <= self.limits.body_bytes;
                let whole = !std::mem::take(&mut self.skipping) && fits;
                return Ok(Some(if whole { Line::Text(line) } else { Line::TooLong }));
            }
            if self.rest.len() > self.limits.body_bytes {
                self.skipping = true;
            }
            if self.skipping {
                self.rest.clear();
            }
            if self.ended {
                let whole = !std::mem::take(&mut self.skipping);
                let line = std::mem::take(&mut self.rest);
                return Ok(match (whole, line.is_empty()) {
                    (false, _) => Some(Line::TooLong),
                    (true, true) => None,
                    (true, false) => Some(Line::Text(line)),
                });
            }
            seen = self.rest.len();
            let limit = self.limits.body_time;
            match timeout(limit, self.body.next()).await.map_err(|_| ApiError::BodyTimeout { limit })? {
                None => self.ended = true,
                Some(part) => {
                    let part = part.map_err(|_| ApiError::Malformed("the body broke off".into()))?;
                    self.read += part.len();
                    if self.read > self.limits.import_bytes {
                        return Err(ApiError::TooLarge { limit: self.limits.import_bytes });
                    }
                    self.rest.extend_from_slice(&part);
                }
            }
        }
    }
}

/// Import tasks
///
/// One task to a line, each as `POST /v1/tasks` takes it (NDJSON, whatever the content type). Every line that is good is
/// stored, every line that is not is reported, and neither bars the other. A line whose `key` the tenant has already
/// changes nothing, so the same lines may be sent again. At most 64 MiB and ten minutes at once and 1 MiB a line; if the body
/// breaks off or is too long, what came before is stored.
#[utoipa::path(post, path = "/v1/tasks/import", tag = "tasks", security(("bearer" = ["tasks:write"])),
    request_body(content = schema::NewTask, content_type = "application/x-ndjson", description = "One task to a line"),
    responses((status = 200, body = Imported), (status = 413, body = Problem, content_type = "application/problem+json",
        description = "The body is larger than 64 MiB")))]
pub async fn import_tasks(
    Held(state): Held<State>,
    caller: Caller,
    query: Query,
    mut lines: Lines,
) -> Result<Json<Imported>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    query.done()?;
    let mut import = Import { state: &state, done: Imported::default(), batch: Vec::new(), bytes: 0 };
    let mut number = 0;
    loop {
        let line = match lines.next().await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                // what came before stays, whatever has become of the rest
                import.store().await?;
                return Err(error);
            }
        };
        number += 1;
        match line {
            Line::TooLong => {
                let limit = state.limits.body_bytes;
                import.refuse(number, Faults::one("", format!("must be at most {limit} bytes long")));
            }
            Line::Text(text) if text.iter().all(u8::is_ascii_whitespace) => {}
            Line::Text(text) => import.take(&caller, number, &text).await?,
        }
    }
    import.store().await?;
    let mut done = import.done;
    done.errors.sort_by_key(|bad| bad.line);
    Ok(Json(done))
}

/// An import that goes on.
struct Import<'a> {
    state: &'a State,
    done: Imported,
    /// What is to be stored next, each with the number of its line.
    batch: Vec<(u64, NewTask)>,
    bytes: usize,
}

impl Import<'_> {
    async fn take(&mut self, caller: &Caller, number: u64, text: &[u8]) -> Result<(), ApiError> {
        match self.read(caller, text) {
            Err(faults) => self.refuse(number, faults),
            Ok(task) => {
                self.done.lines += 1;
                self.batch.push((number, task));
                self.bytes += text.len();
            }
        }
        if self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES {
            self.store().await?;
        }
        Ok(())
    }

    fn read(&self, caller: &Caller, text: &[u8]) -> Result<NewTask, Faults> {
        let value: Value =
            serde_json::from_slice(text).map_err(|error| Faults::one("", format!("must be JSON: {error}")))?;
        let now = self.state.clock.now();
        let draft = Draft::parse(caller.acts_for(&value), &value, &self.state.known, now)?;
        let (task, next) = Task::new(id::new_id(now), draft, now).map_err(|fault| Faults(vec![fault]))?;
        Ok((task, next.map(|next| next.nominal)))
    }

    fn refuse(&mut self, line: u64, faults: Faults) {
        self.done.lines += 1;
        self.done.bad += 1;
        if self.done.errors.len() < DESCRIBED {
            self.done.errors.push(BadLine { line, errors: faults.0 });
        }
    }

    /// Stores what has gathered. Where the database refuses the batch for what is in it, it is tried task by task, so that
    /// one keeps no other out.
    async fn store(&mut self) -> Result<(), ApiError> {
        self.bytes = 0;
        let (numbers, tasks): (Vec<u64>, Vec<NewTask>) = std::mem::take(&mut self.batch).into_iter().unzip();
        match self.state.store.create_tasks(&tasks).await {
            Ok(stored) => self.count(&stored),
            Err(error) if !is_for_what_is_in_it(&error) => return Err(ApiError::of_store(error, "task")),
            Err(_) => {
                for (number, task) in numbers.into_iter().zip(&tasks) {
                    match self.state.store.create_tasks(std::slice::from_ref(task)).await {
                        Ok(stored) => self.count(&stored),
                        Err(error) if !is_for_what_is_in_it(&error) => return Err(ApiError::of_store(error, "task")),
                        Err(error) => {
                            tracing::error!(line = number, %error, "a line of an import can't be stored");
                            self.done.lines -= 1;
                            self.refuse(number, Faults::one("", "can't be stored by the database"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, stored: &[bool]) {
        let created = stored.iter().filter(|stored| **stored).count();
        self.done.created += created as u64;
        self.done.kept += (stored.len() - created) as u64;
    }
}

/// Whether a fault lies in a batch's tasks, and not with the database.
fn is_for_what_is_in_it(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict(_) | StoreError::Corrupt(_))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};

    use super::*;

    /// What is read of a body that comes in these parts.
    async fn read(parts: &[&str], limits: Limits) -> Result<Vec<Option<String>>, ApiError> {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(part.to_string()))).collect();
        let body = Body::from_stream(futures::stream::iter(parts)).into_data_stream();
        let mut lines = Lines { body, limits, rest: Vec::new(), read: 0, ended: false, skipping: false };
        let mut read = Vec::new();
        while let Some(line) = lines.next().await? {
            read.push(match line {
                Line::Text(text) => Some(String::from_utf8(text).unwrap()),
                Line::TooLong => None,
            });
        }
        Ok(read)
    }

    #[tokio::test]
    async fn lines_are_the_same_however_the_body_is_cut() {
        let text = |lines: &[&str]| lines.iter().map(|line| Some((*line).to_owned())).collect::<Vec<_>>();
        for parts in [&["ab\n\ncd\nef"][..], &["a", "b\n", "\nc", "d", "\ne", "f"], &["ab\n\ncd\n", "", "ef"]] {
            assert_eq!(read(parts, Limits::default()).await.unwrap(), text(&["ab", "", "cd", "ef"]), "{parts:?}");
        }
        assert_eq!(read(&["ab\n"], Limits::default()).await.unwrap(), text(&["ab"]));
        assert_eq!(read(&[], Limits::default()).await.unwrap(), text(&[]));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_the_next_one_is_whole() {
        let limits = Limits { body_bytes: 4, ..Limits::default() };
        for parts in [&["12345", "678\nab\n"][..], &["12345678", "9", "0", "\nab"], &["12345\nab"]] {
            assert_eq!(read(parts, limits).await.unwrap(), [None, Some("ab".to_owned())], "{parts:?}");
        }
        assert_eq!(read(&["ab\n12345", "6"], limits).await.unwrap(), [Some("ab".to_owned()), None]);
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_is_refused_when_it_is() {
        let limits = Limits { import_bytes: 8, ..Limits::default() };
        assert_eq!(read(&["abc\n", "def\n"], limits).await.unwrap().len(), 2);
        let refused = read(&["abc\n", "def\n", "g"], limits).await;
        assert!(matches!(refused, Err(ApiError::TooLarge { limit: 8 })), "{refused:?}");
    }
}
