//! The event tasks of all tenants, compiled, in memory: an event is judged by those alone that its source and type lead
//! to.
//!
//! A copy of what the store has, taken in shard by shard as it changes; nothing in here survives, or has to.
//! Expressions are held as texts; the trees of those that were used last are kept with the language, within a tenant's
//! part of a bound.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use uuid::Uuid;

use crate::base::expr::Language;
use crate::domain::event::written::WrittenEvent;
use crate::domain::task::TaskStatus;
use crate::domain::trigger::event::{CompiledEventTrigger, Pattern};
use crate::domain::trigger::{EventTrigger, Trigger};
use crate::store::{EventTask, EventTaskChanges};

/// Steps of a look into a map beside those for the bytes of the text that is looked for.
const LOOK: u64 = 100;

/// A task with its compiled trigger.
#[derive(Debug)]
pub struct IndexedTask {
    /// Id of the task.
    pub task_id: Uuid,
    /// Epoch of the task, which a batch is checked against.
    pub epoch: i64,
    /// Whether the task fires.
    pub status: TaskStatus,
    /// The task keeps events while it is paused.
    pub buffer_while_paused: bool,
    /// Automatic fires that the task may still have.
    pub max_runs: Option<i64>,
    /// The compiled trigger.
    pub matcher: CompiledEventTrigger,
    /// Whether its owner was told, or is about to be, of a field that its expressions look for in vain.
    pub told: AtomicBool,
}

/// A task that is ready to be taken in.
pub struct CompiledTask {
    tenant: String,
    task: IndexedTask,
}

/// Everything that is known of event tasks.
#[derive(Default)]
pub struct Index {
    /// The version of each shard that was taken in; a shard that is not here was never asked for.
    known: BTreeMap<i32, i64>,
    tenants: HashMap<String, TenantTasks>,
    /// Where each task is, to find it again.
    places: HashMap<Uuid, IndexKey>,
}

struct IndexKey {
    tenant: String,
    shard: i32,
    source: Pattern,
    kind: Pattern,
}

/// The tasks of a tenant, by the sources and the types that lead to them.
#[derive(Default)]
struct TenantTasks {
    sources: PatternMap<PatternMap<BTreeMap<Uuid, Arc<IndexedTask>>>>,
    count: usize,
}

/// A map by patterns: exact texts, and beginnings of texts.
struct PatternMap<T> {
    exact: HashMap<String, T>,
    /// By length and text, so that a lookup asks once per length that there is.
    prefixes: BTreeMap<usize, HashMap<String, T>>,
}

impl<T> Default for PatternMap<T> {
    fn default() -> PatternMap<T> {
        PatternMap { exact: HashMap::new(), prefixes: BTreeMap::new() }
    }
}

impl<T: Default> PatternMap<T> {
    fn entry(&mut self, pattern: &Pattern) -> &mut T {
        let map = match pattern.is_prefix {
            true => self.prefixes.entry(pattern.text.len()).or_default(),
            false => &mut self.exact,
        };
        map.entry(pattern.text.clone()).or_default()
    }

    fn matching_patterns<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a T> {
        let lengths = self.prefixes.range(..=text.len());
        let prefixes = lengths.filter_map(|(length, map)| map.get(text.get(..*length)?));
        self.exact.get(text).into_iter().chain(prefixes)
    }

    /// Removes what `is_empty` says of, after `act` on what stands at the pattern.
    fn remove_empty(&mut self, pattern: &Pattern, act: impl FnOnce(&mut T), is_empty: impl Fn(&T) -> bool) {
        let map = match pattern.is_prefix {
            true => self.prefixes.get_mut(&pattern.text.len()),
            false => Some(&mut self.exact),
        };
        let Some(map) = map else { return };
        if let Some(there) = map.get_mut(&pattern.text) {
            act(there);
            if is_empty(there) {
                map.remove(&pattern.text);
            }
        }
        if pattern.is_prefix && map.is_empty() {
            self.prefixes.remove(&pattern.text.len());
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }
}

impl Index {
    /// How many tasks are known.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no task waits for events.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The version of a shard that was taken in; `None` where it was never asked for.
    pub fn version(&self, shard: i32) -> Option<i64> {
        self.known.get(&shard).copied()
    }

    /// Takes in what is newer in a shard, with the tasks of `changes.live` compiled.
    pub fn take_in(&mut self, shard: i32, changes: &EventTaskChanges, compiled: Vec<CompiledTask>) {
        if changes.anew {
            let all: Vec<Uuid> =
                self.places.iter().filter(|(_, place)| place.shard == shard).map(|(id, _)| *id).collect();
            all.into_iter().for_each(|id| self.remove(id));
        }
        changes.gone.iter().for_each(|id| self.remove(*id));
        changes.live.iter().for_each(|task| self.remove(task.task_id));
        compiled.into_iter().for_each(|task| self.add(shard, task));
        self.known.insert(shard, changes.version);
    }

    /// The tasks that an event may concern: of its tenant, with a source and type that lead to it.
    pub fn candidates<'a>(&'a self, event: &'a WrittenEvent) -> impl Iterator<Item = &'a Arc<IndexedTask>> {
        let tenant = self.tenants.get(event.tenant.as_str());
        let sources = tenant.into_iter().flat_map(|tenant| tenant.sources.matching_patterns(&event.source));
        sources.flat_map(|kinds| kinds.matching_patterns(&event.kind)).flat_map(BTreeMap::values)
    }

    /// The steps that it takes at most to find the candidates of an event: each task of its tenant may stand behind a
    /// source and a type of its own.
    pub fn steps_to_look_up(&self, event: &WrittenEvent) -> u64 {
        let tasks = self.tenants.get(event.tenant.as_str()).map_or(0, |tenant| tenant.count);
        let look = LOOK + (event.source.len() + event.kind.len()) as u64;
        (tasks as u64 + 1).saturating_mul(2 * look)
    }

    fn add(&mut self, shard: i32, CompiledTask { tenant, task }: CompiledTask) {
        let place =
            IndexKey { tenant, shard, source: task.matcher.source().clone(), kind: task.matcher.kind().clone() };
        let tenant = self.tenants.entry(place.tenant.clone()).or_default();
        let task_id = task.task_id;
        let before = tenant.sources.entry(&place.source).entry(&place.kind).insert(task_id, Arc::new(task));
        tenant.count += usize::from(before.is_none());
        self.places.insert(task_id, place);
    }

    fn remove(&mut self, task_id: Uuid) {
        let Some(place) = self.places.remove(&task_id) else { return };
        let Some(tenant) = self.tenants.get_mut(&place.tenant) else { return };
        let out_of_kind = |tasks: &mut BTreeMap<_, _>| {
            tasks.remove(&task_id);
        };
        let out_of_source =
            |kinds: &mut PatternMap<BTreeMap<_, _>>| kinds.remove_empty(&place.kind, out_of_kind, BTreeMap::is_empty);
        tenant.sources.remove_empty(&place.source, out_of_source, PatternMap::is_empty);
        tenant.count = tenant.count.saturating_sub(1);
        if tenant.sources.is_empty() {
            self.tenants.remove(&place.tenant);
        }
    }
}

/// A task whose trigger can't be read as it is stored, and why.
pub struct UnreadableTask {
    /// Id of the task.
    pub task_id: Uuid,
    /// Epoch of the task.
    pub epoch: i64,
    /// The fault of its trigger, in a sentence.
    pub why: String,
}

/// Compiles tasks; those that do not go by events any more are left out.
pub fn compile(tasks: &[EventTask], language: &Language) -> Vec<Result<CompiledTask, UnreadableTask>> {
    tasks.iter().filter_map(|task| compile_catching_panics(task, || compile_one(task, language))).collect()
}

/// Compiles a task. A panic stays the task's own: its trigger can't be read.
fn compile_catching_panics(
    task: &EventTask,
    compile: impl FnOnce() -> Option<Result<CompiledTask, UnreadableTask>>,
) -> Option<Result<CompiledTask, UnreadableTask>> {
    catch_unwind(AssertUnwindSafe(compile)).unwrap_or_else(|_| {
        let why = "the service failed while it read the trigger: it panicked".to_owned();
        Some(Err(UnreadableTask { task_id: task.task_id, epoch: task.epoch, why }))
    })
}

fn compile_one(task: &EventTask, language: &Language) -> Option<Result<CompiledTask, UnreadableTask>> {
    let read = serde_json::from_value(task.trigger.clone()).map_err(|error| error.to_string());
    let compiled = match read {
        Ok(Trigger::Event(trigger)) => indexed(task, &trigger, language),
        Ok(_) => return None,
        Err(why) => Err(why),
    };
    Some(match compiled {
        Ok(compiled) => Ok(CompiledTask { tenant: task.tenant_id.clone(), task: compiled }),
        Err(why) => Err(UnreadableTask { task_id: task.task_id, epoch: task.epoch, why }),
    })
}

/// A task with its compiled trigger.
pub fn indexed(task: &EventTask, trigger: &EventTrigger, language: &Language) -> Result<IndexedTask, String> {
    let (named, language) = ((task.task_id, task.name.as_str(), &task.metadata), language.of_tenant(&task.tenant_id));
    let matcher = CompiledEventTrigger::compile(trigger, named, &language)?;
    Ok(IndexedTask {
        task_id: task.task_id,
        epoch: task.epoch,
        status: task.status,
        buffer_while_paused: trigger.buffer_while_paused,
        max_runs: task.max_runs,
        matcher,
        told: AtomicBool::new(false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::domain::event::Event;

    fn task(number: u128) -> EventTask {
        EventTask {
            task_id: Uuid::from_u128(number),
            tenant_id: "a".into(),
            name: "n".into(),
            metadata: Map::new(),
            epoch: 7,
            status: TaskStatus::Active,
            trigger: json!({ "type": "event", "source": "shop" }),
            max_runs: None,
        }
    }

    #[test]
    fn task_whose_compiling_panics_is_unreadable_and_the_one_beside_it_is_compiled() {
        let (bad, good) = (task(1), task(2));
        let found = compile_catching_panics(&bad, || panic!("on purpose"));
        let Some(Err(unreadable)) = found else { panic!("it can't be compiled") };
        assert_eq!((unreadable.task_id, unreadable.epoch), (bad.task_id, 7));
        assert!(unreadable.why.ends_with("it panicked"), "{}", unreadable.why);
        let found = compile_catching_panics(&good, || compile_one(&good, &Language::default()));
        assert!(found.is_some_and(|task| task.is_ok_and(|compiled| compiled.task.task_id == good.task_id)));
    }

    #[test]
    fn look_up_is_reckoned_by_the_tasks_that_the_tenant_has_now() {
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "t", "tenantid": "a" });
        let event = WrittenEvent::of(&Event::try_from(event).unwrap());
        let mut index = Index::default();
        let mut take_in = |live: Vec<EventTask>, gone: Vec<Uuid>| {
            let compiled = compile(&live, &Language::default()).into_iter().flat_map(Result::ok).collect();
            let changes = EventTaskChanges { anew: false, live, gone, version: 1, more: false };
            index.take_in(0, &changes, compiled);
            index.steps_to_look_up(&event)
        };
        let none = take_in(Vec::new(), Vec::new());
        assert!(none > 0);
        assert_eq!(take_in(vec![task(1), task(2)], Vec::new()), 3 * none);
        assert_eq!(take_in(vec![task(2)], Vec::new()), 3 * none, "it was there before");
        assert_eq!(take_in(Vec::new(), vec![Uuid::from_u128(1)]), 2 * none);
        assert_eq!(take_in(Vec::new(), vec![Uuid::from_u128(2)]), none);
    }
}
