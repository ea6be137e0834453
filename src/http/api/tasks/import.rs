//! Tasks by the thousand: NDJSON in, a report out.
//!
//! The body is read as it comes and stored a batch at a time, so one batch is held, however long the import is.
//! Lines are understood in groups on computing threads, where tenants take turns. Each line stands for itself: one that
//! is wrong is reported, and keeps no other out; so is one that is more than a quota allows, unless none could be
//! stored: then the request as a whole is refused. What was stored before the connection broke, or the time was over,
//! stays; where lines have keys, to send all of it again adds what is missing.

mod lines;

use axum::body::Bytes;
use serde::Serialize;
use serde_json::Value;

use crate::base::expr::MissingField;
use crate::base::invalid::{FieldError, ValidationErrors};
use crate::base::token::Permission;
use crate::domain::quota::{ExceededQuota, Quota};
use crate::domain::task::named_by;
use crate::domain::trigger::Trigger;
use crate::http::api::tasks::kept_events::missing_field;
use crate::http::api::tasks::read_new;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, Json, Query};
use crate::http::{HttpState, schema};
use crate::store::{NewTask, StoreError};
use lines::{BodyLine, BodyLines};

/// Tasks that are stored at once, and how long they may be together, in bytes.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1024 * 1024;
/// Bytes for which a credential or a tool that a task names counts: it is a row of its own.
const NAMED_BYTES: usize = 256;
/// Lines that are read at once on a computing thread, and how long they may be together, in bytes: nothing more is done
/// for a client that has left.
const GROUP: usize = 64;
const GROUP_BYTES: usize = 256 * 1024;
/// Bad lines that are described, each with so many faults; the rest are counted.
const DESCRIBED: usize = 1_000;
const FAULTS: usize = 10;
/// Lines that an import may have which are empty or bad: then it is no list of tasks.
const BARREN: u64 = 100_000;

/// New event tasks that are held against kept events.
const HELD: usize = 50;

/// Where it is asked for; its time limit is of its own.
pub const PATH: &str = "/v1/tasks/import";

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Imported {
    /// Lines that were read; empty ones are not counted.
    pub lines: u64,
    /// Tasks that were stored now.
    pub created: u64,
    /// Lines whose key the tenant has already: nothing was changed.
    pub unchanged: u64,
    /// Lines that were not stored.
    pub rejected: u64,
    /// Of the bad lines, those that are good tasks, and more than a quota allows; absent where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub over_quota: u64,
    /// The first 1,000 bad lines, in their order.
    pub errors: Vec<BadLine>,
    /// Of the first 50 event tasks that were stored now, those that look for a field which no kept event has; absent
    /// where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<LineWarning>,
}

/// A line that was stored, and that may do nothing.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct LineWarning {
    /// Counted from 1, empty lines included.
    pub line: u64,
    /// A field that its event trigger looks for and that none of the newest kept events of its source and type has.
    pub missing: MissingField,
}

/// A line that was not stored, and everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct BadLine {
    /// Counted from 1, empty lines included.
    pub line: u64,
    /// Faults of the line, each with its place.
    pub errors: Vec<FieldError>,
    /// Where a quota refuses the line: which one. The line is good, and may be sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
}

/// Import tasks
///
/// One task to a line, each as `POST /v1/tasks` takes it (NDJSON, whatever the content type). Every line that is good
/// is stored, every line that is not is reported, and neither bars the other. A line whose `key` the tenant has already
/// changes nothing, so the same lines may be sent again. `export:` and an id, as `reveille task export` writes it for a
/// task without a key, is the key of the task with that id. A line that is more than a quota allows is reported with
/// the quota; where nothing was stored because of a quota, the answer is 429. The first event tasks are held against
/// kept events as by `POST /v1/tasks`, and `warnings` has those of them that miss a field. At most 64 MiB and ten
/// minutes at once and 1 MiB a line, and at most 100,000 lines that are empty or bad; if the body breaks off or goes
/// beyond that, what came before is stored.
#[utoipa::path(post, path = "/v1/tasks/import", tag = "tasks", security(("bearer" = ["tasks:write"])),
    request_body(content = schema::TaskLines, content_type = "application/x-ndjson"),
    responses((status = 200, body = Imported), (status = 413, body = ProblemDetails, content_type = "application/problem+json",
        description = "The body is larger than 64 MiB"), (status = 429, body = ProblemDetails,
        content_type = "application/problem+json",
        description = "Too many requests, or a quota allows none of the tasks; see Retry-After")))]
pub async fn import_tasks(
    Call(state, caller): Call,
    query: Query,
    mut lines: BodyLines,
) -> Result<Json<Imported>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    query.done()?;
    let mut import = Import::new(state, caller);
    let ended = loop {
        match lines.next().await {
            Ok(Some(line)) => {
                if let Err(error) = import.take(line).await {
                    break Err(error);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // what came before stays, whatever has become of the rest
    import.read().await?;
    import.store().await?;
    ended?;
    import.outcome().map(Json)
}

/// An import that goes on.
struct Import {
    state: HttpState,
    caller: AuthenticatedCaller,
    done: Imported,
    /// Lines so far.
    number: u64,
    empty: u64,
    /// Lines to read next, each with its number.
    group: Vec<(u64, Bytes)>,
    group_bytes: usize,
    /// Tasks to store next.
    batch: Vec<(u64, NewTask)>,
    bytes: usize,
    /// The first refusal of a quota.
    over: Option<Box<ExceededQuota>>,
    /// Tasks that were held against kept events.
    held: usize,
}

/// A line as it was understood, and the part of a batch that it takes.
enum ImportedLine {
    Empty,
    Bad(ValidationErrors),
    Task(Box<NewTask>, usize),
}

impl Import {
    fn new(state: HttpState, caller: AuthenticatedCaller) -> Import {
        Import {
            state,
            caller,
            done: Imported::default(),
            number: 0,
            empty: 0,
            group: Vec::new(),
            group_bytes: 0,
            batch: Vec::new(),
            bytes: 0,
            over: None,
            held: 0,
        }
    }

    /// Takes the next line; a group that is full is read.
    async fn take(&mut self, line: BodyLine) -> Result<(), ApiError> {
        self.number += 1;
        match line {
            BodyLine::TooLong => {
                let limit = self.state.limits.body_bytes;
                self.refuse(self.number, ValidationErrors::one("", format!("must be at most {limit} bytes long")));
            }
            BodyLine::Text(text) if text.is_empty() => self.empty += 1,
            BodyLine::Text(text) => {
                self.group_bytes += text.len();
                self.group.push((self.number, text));
            }
        }
        if self.group.len() >= GROUP || self.group_bytes >= GROUP_BYTES {
            self.read().await?;
        }
        match self.empty + self.done.rejected > BARREN {
            true => Err(ApiError::invalid("", format!("must have at most {BARREN} lines that are empty or no task"))),
            false => Ok(()),
        }
    }

    /// Reads the group that has gathered; a batch that is full is stored.
    async fn read(&mut self) -> Result<(), ApiError> {
        self.group_bytes = 0;
        let group = std::mem::take(&mut self.group);
        if group.is_empty() {
            return Ok(());
        }
        let (state, caller) = (self.state.clone(), self.caller.clone());
        let read =
            move || group.iter().map(|(number, text)| (*number, read(&state, &caller, text))).collect::<Vec<_>>();
        for (number, read) in self.state.compute_for(self.caller.computes_for(), read).await? {
            match read {
                ImportedLine::Empty => self.empty += 1,
                ImportedLine::Bad(faults) => self.refuse(number, faults),
                ImportedLine::Task(task, bytes) => {
                    self.done.lines += 1;
                    self.batch.push((number, *task));
                    self.bytes += bytes;
                    if self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES {
                        self.store().await?;
                    }
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, line: u64, mut faults: ValidationErrors) {
        self.done.lines += 1;
        self.done.rejected += 1;
        if self.done.errors.len() < DESCRIBED {
            faults.0.truncate(FAULTS);
            self.done.errors.push(BadLine { line, errors: faults.0, quota: None });
        }
    }

    /// A line that is good, and that a quota refuses.
    fn refuse_over_quota(&mut self, line: u64, over: Box<ExceededQuota>) {
        self.done.over_quota += 1;
        self.refuse(line, ValidationErrors::one("", over.to_string()));
        if let Some(bad) = self.done.errors.last_mut().filter(|bad| bad.line == line) {
            bad.quota = Some(over.quota);
        }
        self.over.get_or_insert(over);
    }

    /// The result. Where quotas refused lines and nothing could be stored, the request as a whole is refused.
    fn outcome(mut self) -> Result<Imported, ApiError> {
        match self.over {
            Some(over) if self.done.created == 0 => Err(ApiError::QuotaExceeded(over)),
            _ => {
                self.done.errors.sort_by_key(|bad| bad.line);
                Ok(self.done)
            }
        }
    }

    /// Stores what has gathered. Where the database refuses the batch for what is in it, it is tried task by task, so
    /// that one keeps no other out.
    async fn store(&mut self) -> Result<(), ApiError> {
        self.bytes = 0;
        let (numbers, tasks): (Vec<u64>, Vec<NewTask>) = std::mem::take(&mut self.batch).into_iter().unzip();
        match self.state.store.create_tasks(&tasks).await {
            Ok(stored) => self.count(&numbers, &tasks, &stored).await,
            Err(error) if !is_input_error(&error) => return Err(ApiError::of_store(error, "task")),
            Err(_) => {
                for (number, task) in numbers.into_iter().zip(&tasks) {
                    let one = std::slice::from_ref(task);
                    match self.state.store.create_tasks(one).await {
                        Ok(stored) => self.count(&[number], one, &stored).await,
                        Err(error) if !is_input_error(&error) => return Err(ApiError::of_store(error, "task")),
                        Err(StoreError::Quota(over)) => {
                            self.done.lines -= 1;
                            self.refuse_over_quota(number, over);
                        }
                        Err(error) => {
                            tracing::error!(line = number, %error, "a line of an import can't be stored");
                            self.done.lines -= 1;
                            self.refuse(number, ValidationErrors::one("", "can't be stored by the database"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts what was stored, and holds the first new tasks against kept events.
    async fn count(&mut self, numbers: &[u64], tasks: &[NewTask], stored: &[bool]) {
        let created = stored.iter().filter(|stored| **stored).count();
        self.done.created += created as u64;
        self.done.unchanged += (stored.len() - created) as u64;
        let made = numbers.iter().zip(tasks).zip(stored).filter(|(_, stored)| **stored);
        for ((line, (task, _)), _) in made {
            if self.held >= HELD || !matches!(task.spec.trigger, Trigger::Event(_)) {
                continue;
            }
            self.held += 1;
            if let Some(missing) = missing_field(&self.state, &self.caller, task).await {
                self.done.warnings.push(LineWarning { line: *line, missing });
            }
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn read(state: &HttpState, caller: &AuthenticatedCaller, text: &[u8]) -> ImportedLine {
    if text.iter().all(u8::is_ascii_whitespace) {
        return ImportedLine::Empty;
    }
    match task(state, caller, text) {
        Ok(task) => {
            let weight = weight(text.len(), named_by(&task.0.spec).len());
            ImportedLine::Task(Box::new(task), weight)
        }
        Err(faults) => ImportedLine::Bad(faults),
    }
}

/// The part of a batch that a task takes, in bytes.
fn weight(bytes: usize, named: usize) -> usize {
    bytes + named * NAMED_BYTES
}

fn task(state: &HttpState, caller: &AuthenticatedCaller, text: &[u8]) -> Result<NewTask, ValidationErrors> {
    let value: Value =
        serde_json::from_slice(text).map_err(|error| ValidationErrors::one("", format!("must be JSON: {error}")))?;
    read_new(state, caller, &value, state.clock.now())
}

/// Whether a fault lies in a batch's tasks, and not with the database.
fn is_input_error(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict(_) | StoreError::Corrupt(_) | StoreError::Quota(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fill_a_batch_as_bytes_do() {
        assert!(weight(BATCH_BYTES - 1, 0) < BATCH_BYTES && weight(BATCH_BYTES, 0) >= BATCH_BYTES);
        assert!(weight(0, 4_095) < BATCH_BYTES && weight(0, 4_096) >= BATCH_BYTES);
    }
}
