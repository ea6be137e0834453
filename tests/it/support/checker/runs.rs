//! Each run is where its state says, is executed by one worker at a time, and ends once.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::TimeDelta;
use uuid::Uuid;

use super::super::effects::{Effect, answer_to};
use super::{CheckerFacts, Records, RunRow, Verdict};

const FINAL: [&str; 5] = ["succeeded", "failed", "cancelled", "expired", "skipped"];
/// A run whose process died this often is not tried again.
const CRASH_LIMIT: i64 = 3;
/// How exactly the clocks of a test's two sides agree, and how long a request is on its way.
const NEARLY: TimeDelta = TimeDelta::seconds(1);

pub fn judge(records: &Records, known: &CheckerFacts, verdict: &mut Verdict) {
    let queued: HashMap<Uuid, &super::records::QueueRow> = records.queue.iter().map(|row| (row.run_id, row)).collect();
    let parked: HashMap<Uuid, &str> = records.parked.iter().map(|(id, why)| (*id, why.as_str())).collect();
    let runs: HashMap<Uuid, &RunRow> = records.runs.iter().map(|run| (run.id, run)).collect();
    for run in &records.runs {
        check_location(run, queued.get(&run.id).map(|row| row.state.as_str()), parked.get(&run.id).copied(), verdict);
        ends(run, known, verdict);
        overlap(run, &runs, known, verdict);
    }
    queue(records, &runs, verdict);
    slots(records, verdict);
    let pipelines = pipelines(records);
    effects(&runs, &pipelines, known, verdict);
    payments(&runs, &paying(records), known, verdict);
    deliveries(records, verdict);
    if known.ended && records.events.iter().any(|event| event.waits) {
        verdict.violated("ended", "an event still waits to be matched");
    }
    if known.ended && !(records.queue.is_empty() && records.parked.is_empty() && records.slots.is_empty()) {
        let (queue, parked, slots) = (records.queue.len(), records.parked.len(), records.slots.len());
        verdict.violated("ended", format!("{queue} queued, {parked} parked, {slots} slots are left"));
    }
}

/// A run is in the queue, among the parked ones, or final; nothing else, and never two of them.
fn check_location(run: &RunRow, queued: Option<&str>, parked: Option<&str>, verdict: &mut Verdict) {
    let fits = match (run.state.as_str(), queued, parked) {
        ("queued", Some("ready" | "claimed"), None) => true,
        ("queued", None, Some("overlap")) => true,
        ("running", Some("started"), None) => true,
        ("waiting_for_input" | "pending_approval", None, Some("approval")) => true,
        ("waiting_for_completion", None, Some("completion")) => true,
        (state, None, None) => FINAL.contains(&state),
        _ => false,
    };
    if !fits {
        verdict.violated("place", format!("{} is {}, queued {queued:?}, parked {parked:?}", run.id, run.state));
    }
}

/// Instants in their order, attempts within their limits, and an end where there is to be one.
fn ends(run: &RunRow, known: &CheckerFacts, verdict: &mut Verdict) {
    let is_final = FINAL.contains(&run.state.as_str());
    if is_final != run.finished_at.is_some() {
        verdict.violated("final", format!("{} is {}, finished at {:?}", run.id, run.state, run.finished_at));
    }
    if known.ended && !is_final {
        verdict.violated("ended", format!("{} of {:?} is still {}", run.id, run.task_id, run.state));
    }
    let ran = matches!(run.state.as_str(), "succeeded" | "failed");
    if ran && (run.attempt < 1 || run.started_at.is_none()) {
        verdict.violated("attempt", format!("{} {} without an attempt", run.id, run.state));
    }
    if run.state == "skipped" && (run.attempt > 0 || run.started_at.is_some()) {
        verdict.violated("attempt", format!("{} is skipped, and was started", run.id));
    }
    if run.state == "failed" && run.error.is_none() {
        verdict.violated("reason", format!("{} failed, and nothing says why", run.id));
    }
    if run.crashes > CRASH_LIMIT || run.crashes > known.crashes {
        verdict.violated("crashes", format!("{} counts {} crashes of {}", run.id, run.crashes, known.crashes));
    }
    if run.attempt > run.crashes + 1 && !retried(run) {
        verdict.violated("attempt", format!("{} has {} attempts, {} crashes", run.id, run.attempt, run.crashes));
    }
    if known.clock_stepped {
        return;
    }
    if run.started_at.is_some_and(|started| started < run.scheduled_for) {
        verdict.violated("early", format!("{} started before {}", run.id, run.scheduled_for));
    }
    if let (Some(started), Some(finished)) = (run.started_at, run.finished_at)
        && finished + NEARLY < started
    {
        verdict.violated("final", format!("{} finished at {finished}, started at {started}", run.id));
    }
}

/// Whether its last attempt failed by itself: then it was tried again for another reason than a crash.
fn retried(run: &RunRow) -> bool {
    run.error.is_some()
}

/// One that was skipped for another names that other: a run of the same task.
fn overlap(run: &RunRow, runs: &HashMap<Uuid, &RunRow>, known: &CheckerFacts, verdict: &mut Verdict) {
    if run.state != "skipped" || run.reason.as_deref() != Some("overlap") {
        return;
    }
    let Some(holder) = run.blocked_by.and_then(|id| runs.get(&id)) else {
        return verdict.violated("overlap", format!("{} is skipped for {:?}, which is no run", run.id, run.blocked_by));
    };
    let over = holder.finished_at.zip(run.finished_at).is_some_and(|(over, skipped)| over + NEARLY < skipped);
    if holder.task_id != run.task_id || (over && !known.clock_stepped) {
        let (skipped, over) = (run.finished_at, holder.finished_at);
        let told = format!("{} is skipped at {skipped:?} for {}, which was over at {over:?}", run.id, holder.id);
        verdict.violated("overlap", format!("{told}, and was not in its way"));
    }
}

fn queue(records: &Records, runs: &HashMap<Uuid, &RunRow>, verdict: &mut Verdict) {
    let mut tokens = HashSet::new();
    for row in &records.queue {
        if !runs.contains_key(&row.run_id) {
            verdict.violated("queue", format!("{} is queued, and there is no such run", row.run_id));
        }
        let leased = row.state != "ready";
        if leased != row.has_lease || (row.state == "started") != row.has_deadline && leased {
            verdict.violated("queue", format!("{} is {} with its lease and deadline amiss", row.run_id, row.state));
        }
        if leased && (!tokens.insert(row.lease_token) || row.lease_token > records.last_token) {
            verdict.violated("tokens", format!("{} has a token that is not its own", row.run_id));
        }
    }
    for id in records.parked.iter().map(|(id, _)| id).filter(|id| !runs.contains_key(id)) {
        verdict.violated("queue", format!("{id} is parked, and there is no such run"));
    }
}

/// At most one run of a task at a time, but where its policy lets them; a slot is its holder's.
fn slots(records: &Records, verdict: &mut Verdict) {
    let mut started: BTreeMap<Uuid, usize> = BTreeMap::new();
    for task_id in records.queue.iter().filter(|row| row.state == "started").filter_map(|row| row.task_id) {
        *started.entry(task_id).or_default() += 1;
    }
    for task in &records.tasks {
        let count = started.get(&task.id).copied().unwrap_or(0);
        let policy = task.spec.0["trigger"]["overlap"].as_str().unwrap_or("skip");
        if count > 1 && policy != "allow" {
            verdict.violated("slots", format!("{count} runs of {} at a time, overlap {policy}", task.id));
        }
    }
    let alive = |id: &Uuid| {
        records.queue.iter().any(|row| row.run_id == *id) || records.parked.iter().any(|(parked, _)| parked == id)
    };
    for (task_id, run_id) in records.slots.iter().filter(|(_, run_id)| !alive(run_id)) {
        verdict.violated("slots", format!("{run_id} is over and has the slot of {task_id}"));
    }
}

/// Judges the requests that the other side has seen: each attempt once, in order, not before its time, not after the
/// end; and the recorded answer was the answer to the attempt that is recorded.
fn effects(runs: &HashMap<Uuid, &RunRow>, pipelines: &HashSet<Uuid>, known: &CheckerFacts, verdict: &mut Verdict) {
    let mut of_run: HashMap<Uuid, Vec<&Effect>> = HashMap::new();
    let (older, _) = known.effects.split_at(known.effects.len() - known.newer);
    for effect in older {
        of_run.entry(effect.run_id).or_default().push(effect);
    }
    for (id, effects) in &of_run {
        let Some(run) = runs.get(id) else {
            verdict.violated("effects", format!("{id} was executed, and there is no such run"));
            continue;
        };
        for effect in effects {
            if effect.key != id.to_string() || Some(effect.task_id) != run.task_id {
                verdict.violated("effects", format!("{id} was executed under the key {}", effect.key));
            }
            if effect.attempt > run.attempt && !known.hands_back {
                verdict.violated("effects", format!("{id}: attempt {} is not recorded", effect.attempt));
            }
            if !known.clock_stepped && effect.at + NEARLY < effect.scheduled_for {
                verdict.violated("early", format!("{id} was executed at {}", effect.at));
            }
            let over = run.finished_at.is_some_and(|finished| finished + NEARLY < effect.at);
            if over && !known.clock_stepped {
                verdict.violated("fence", format!("{id} was executed at {}, after its end", effect.at));
            }
        }
        for pair in effects.windows(2) {
            let repeats = run.infra_retries > 0 || known.hands_back;
            if pair[0].attempt > pair[1].attempt || (pair[0].attempt == pair[1].attempt && !repeats) {
                let (first, second) = (pair[0].attempt, pair[1].attempt);
                verdict.violated("fence", format!("{id}: attempt {second} was executed after attempt {first}"));
            }
        }
        if run.state == "skipped" {
            verdict.violated("effects", format!("{id} is skipped, and was executed"));
        }
    }
    let answered: HashSet<(Uuid, i64)> = known.effects.iter().map(|effect| (effect.run_id, effect.attempt)).collect();
    let is_pipeline = |run: &RunRow| run.task_id.is_some_and(|id| pipelines.contains(&id));
    let of_webhook = |run: &RunRow| !of_run.is_empty() && run.state == "succeeded" && !is_pipeline(run);
    for run in runs.values().filter(|run| of_webhook(run)) {
        if run.output.as_deref() != Some(&answer_to(run.id, run.attempt)) {
            let output = &run.output;
            verdict.violated("fence", format!("{} ended in attempt {} with {output:?}", run.id, run.attempt));
        }
        if !answered.contains(&(run.id, run.attempt)) {
            verdict.violated("effects", format!("{} succeeded in attempt {}, which nobody saw", run.id, run.attempt));
        }
    }
}

/// Tasks whose runs are pipelines.
fn pipelines(records: &Records) -> HashSet<Uuid> {
    let is_pipeline = |task: &&super::TaskRow| task.spec.0["executor"] == "pipeline";
    records.tasks.iter().filter(is_pipeline).map(|task| task.id).collect()
}

/// Tasks whose runs are pipelines that pay.
fn paying(records: &Records) -> HashSet<Uuid> {
    let pays = |task: &&super::TaskRow| task.spec.0.to_string().contains("\"pays\"");
    let pipelines = pipelines(records);
    records.tasks.iter().filter(pays).map(|task| task.id).filter(|id| pipelines.contains(id)).collect()
}

/// Judges the payments of pipelines: nobody pays twice, and a run that succeeded has paid.
fn payments(runs: &HashMap<Uuid, &RunRow>, paying: &HashSet<Uuid>, known: &CheckerFacts, verdict: &mut Verdict) {
    let mut paid = HashSet::new();
    for payment in &known.payments {
        if !paid.insert(payment.run_id) {
            verdict.violated("paid_once", format!("{} has paid again, under the key {}", payment.run_id, payment.key));
        }
    }
    let of_pipelines = runs.values().filter(|run| run.task_id.is_some_and(|id| paying.contains(&id)));
    for run in of_pipelines.filter(|run| run.state == "succeeded" && !paid.contains(&run.id)) {
        verdict.violated("effects", format!("{} succeeded, and has not paid", run.id));
    }
}

/// A message is in the outbox once.
fn deliveries(records: &Records, verdict: &mut Verdict) {
    let mut seen = HashSet::new();
    for row in &records.deliveries {
        if !seen.insert((&row.tenant_id, &row.recipient, &row.channel, &row.dedupe_key)) {
            verdict.violated("deliveries", format!("{} is twice in the outbox", row.dedupe_key));
        }
    }
    let told = records.deliveries.iter().filter_map(|row| row.dedupe_key.strip_prefix("run:")?.split(':').next());
    let known: HashSet<String> = records.runs.iter().map(|run| run.id.to_string()).collect();
    for id in told.filter(|id| !known.contains(*id)) {
        verdict.violated("deliveries", format!("{id} was told of, and there is no such run"));
    }
}
