//! Runs that wait for people: listed with the agents that wait, counted against their quota, paused and resumed.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::approval::link::SHOWS_FOR;
use reveille::domain::approval::{Approval, ApprovalChoice, ApprovalStatus, QuestionKind};
use reveille::domain::quota::{Overrides, Quota};
use reveille::domain::run::RunState;
use reveille::store::{
    ApprovalLink, AuditFilter, DecisionOutcome, DecisionRefusal, Finish, StartedRun, StoreError, SuspendedFilter,
    SuspendedRun, WaitingOutcome, WaitingUpdate,
};
use serde_json::json;
use uuid::Uuid;

use super::asked::{LIMIT, answer, asked, asked_with, go_on, park, parked, question};
use super::world::{StoreHarness, only};

on_both!(
    waiting_runs_are_listed_newest_first_with_the_agents_that_wait,
    paused_run_takes_no_answer_and_has_its_time_left_when_it_is_resumed,
    call_that_is_held_stays_held_while_its_run_is_paused,
    paused_run_is_resumed_by_itself_after_thirty_days,
    run_is_paused_a_bounded_number_of_times_while_it_waits,
    run_that_waits_for_nobody_is_not_paused,
    runs_that_wait_are_counted_against_their_quota,
    runs_that_begin_to_wait_at_the_same_instant_are_held_to_the_quota_together,
    run_that_waits_on_is_parked_whatever_the_quota_says,
    paused_run_is_cancelled_like_any_other,
);

const EVERY: &Scope = &Scope::Every;
/// Seconds for which a run is paused at most.
const LONGEST: i64 = 30 * 86_400;

async fn list(world: &StoreHarness, scope: &Scope, before: Option<Uuid>, limit: i64) -> Vec<SuspendedRun> {
    world.store.list_suspended(scope, &SuspendedFilter { run_id: None, before, limit }).await.unwrap().rows
}

async fn one(world: &StoreHarness, run_id: Uuid) -> SuspendedRun {
    let filter = SuspendedFilter { run_id: Some(run_id), before: None, limit: 1 };
    world.store.list_suspended(EVERY, &filter).await.unwrap().rows.remove(0)
}

async fn decide(world: &StoreHarness, to: &Approval) -> Result<ApprovalStatus, DecisionRefusal> {
    match world.store.decide_approval(EVERY, to.id, &answer(ApprovalChoice::Approve, to, "token:t")).await.unwrap() {
        DecisionOutcome::Done(approval) => Ok(approval.status),
        DecisionOutcome::Refused(refusal, _) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

async fn settle(world: &StoreHarness, run_id: Uuid) -> WaitingOutcome {
    let update = WaitingUpdate { wake_at: world.now() + TimeDelta::days(1), deliveries: vec![], if_expired: vec![] };
    world.store.settle_waiting(run_id, &update).await.unwrap()
}

/// How many runs the reminders look at now.
async fn looked_at(world: &StoreHarness) -> usize {
    world.store.waiting_for_people(world.now(), 10).await.unwrap().len()
}

async fn waiting_runs_are_listed_newest_first_with_the_agents_that_wait(world: &StoreHarness) {
    assert_eq!(list(world, EVERY, None, 10).await, []);
    let (task, started, _) = asked_with(world, &["c1", "c2"], |asked| {
        asked.proposal.delegation_chain = vec!["Evening".into(), "BookTable".into()];
    })
    .await;
    world.pass(60);
    let other = world.task_with("b", json!({ "interval": "1h" }), json!({})).await;
    let younger = world.started(&other).await;
    let by = |call: &str, chain: &[&str]| {
        let mut asked = question(world, &younger, call);
        asked.proposal.delegation_chain = chain.iter().map(|name| (*name).to_owned()).collect();
        (asked, None)
    };
    park(world, &younger, &[by("c1", &["Evening"]), by("c2", &[])], &[]).await;
    // one that waits for its turn is none of them
    let blocked = world.task(json!({ "interval": "1h", "overlap": "queue_one" })).await;
    world.started(&blocked).await;
    world.run_now(&blocked).await;

    let all = list(world, EVERY, None, 10).await;
    let told: Vec<_> = all.iter().map(|run| (run.run_id, run.tenant_id.as_str(), run.task_id)).collect();
    assert_eq!(told, [(younger.run.id, "b", Some(other.id)), (started.run.id, "a", Some(task.id))]);
    let [caller] = &all[1].agents[..] else { panic!("{all:?}") };
    assert_eq!((caller.delegation_chain.join(">").as_str(), caller.questions), ("Evening>BookTable", 2));
    let since = world.now() - TimeDelta::seconds(60);
    assert_eq!((caller.since, caller.expires_at), (since, since + TimeDelta::seconds(LIMIT)));
    let chains: Vec<_> = all[0].agents.iter().map(|agent| agent.delegation_chain.join(">")).collect();
    assert_eq!((chains.as_slice(), all[0].state), (&[String::new(), "Evening".into()][..], RunState::PendingApproval));
    assert_eq!(all[0].paused_at, None);

    assert_eq!(list(world, &only("a"), None, 10).await, all[1..]);
    assert_eq!(list(world, &only("c"), None, 10).await, []);
    assert_eq!(list(world, EVERY, None, 1).await, all[..1]);
    assert_eq!(list(world, EVERY, Some(younger.run.id), 10).await, all[1..]);
    assert_eq!(list(world, &only("b"), Some(younger.run.id), 10).await, []);
}

async fn paused_run_takes_no_answer_and_has_its_time_left_when_it_is_resumed(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1", "c2"]).await;
    let run_id = started.run.id;
    let link = ApprovalLink {
        batch_id: asked[0].batch_id,
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "log".into(),
        expires_at: asked[0].expires_at + SHOWS_FOR,
    };
    world.store.remember_link(&[7; 32], &link).await.unwrap();
    world.pass(LIMIT - 600);
    let paused = world.store.pause_suspended(&only("a"), run_id, "token:t").await.unwrap();
    assert_eq!(paused, one(world, run_id).await);
    let (paused_at, latest) = (world.now(), asked[0].expires_at + TimeDelta::seconds(LONGEST));
    assert_eq!((paused.paused_at, paused.agents[0].expires_at), (Some(paused_at), latest));
    world.pass(60);
    assert_eq!(
        world.store.pause_suspended(EVERY, run_id, "token:t").await.unwrap(),
        paused,
        "once more changes nothing"
    );

    // days later nobody has been reminded, nothing has expired, and nobody can answer
    world.pass(20 * 86_400);
    assert_eq!(looked_at(world).await, 0);
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Waits);
    assert_eq!(decide(world, &asked[0]).await, Err(DecisionRefusal::Paused));
    assert_eq!(world.store.get_approval(EVERY, asked[0].id).await.unwrap().status, ApprovalStatus::Pending);
    let resumed = world.store.resume_suspended(&only("a"), run_id, "token:t").await.unwrap();
    let later = world.now() - paused_at;
    assert_eq!((resumed.paused_at, resumed.paused_until), (None, None));
    assert_eq!(resumed.agents[0].expires_at, asked[0].expires_at + later);
    assert_eq!(looked_at(world).await, 1, "what is due now is worked out anew");
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Waits);
    let shown = asked[0].expires_at + later + SHOWS_FOR;
    assert_eq!(world.store.approvals_by_link(&[7; 32], world.now()).await.unwrap().0.expires_at, shown);
    assert_eq!(world.store.resume_suspended(EVERY, run_id, "token:t").await.unwrap(), resumed);
    // a second pause adds up
    world.pass(100);
    world.store.pause_suspended(EVERY, run_id, "token:t").await.unwrap();
    world.pass(7_200);
    world.store.resume_suspended(EVERY, run_id, "token:t").await.unwrap();
    world.pass(499);
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved));
    world.pass(1);
    assert_eq!(decide(world, &asked[1]).await, Err(DecisionRefusal::Expired));

    let filter = AuditFilter { subject_id: Some(run_id), limit: 50, ..AuditFilter::default() };
    let acts = world.store.audit_page(&only("a"), &filter).await.unwrap().rows;
    let acts: Vec<_> = acts.iter().rev().map(|act| (act.actor.as_str(), act.action.as_str())).collect();
    assert_eq!(acts, [("token:t", "agent.paused"), ("token:t", "agent.resumed")].repeat(2));
}

async fn call_that_is_held_stays_held_while_its_run_is_paused(world: &StoreHarness) {
    let (_, started, asked) = asked_with(world, &["c1"], |asked| asked.proposal.undo_seconds = Some(60)).await;
    let run_id = started.run.id;
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved));
    park(world, &go_on(world, run_id).await, &[], &[asked[0].id]).await;
    world.pass(20);
    world.store.pause_suspended(EVERY, run_id, "token:t").await.unwrap();
    world.pass(3_600);
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Waits);
    let agents = one(world, run_id).await.agents;
    let latest = world.now() + TimeDelta::seconds(LONGEST + 40 - 3_600);
    assert_eq!((agents[0].questions, agents[0].expires_at), (1, latest));
    world.store.resume_suspended(EVERY, run_id, "token:t").await.unwrap();
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Waits, "it is held for the rest of its minute");
    world.pass(40);
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Woken);
    go_on(world, run_id).await;
}

async fn paused_run_is_resumed_by_itself_after_thirty_days(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    let run_id = started.run.id;
    world.store.pause_suspended(EVERY, run_id, "token:t").await.unwrap();
    let resumes_at = world.now() + TimeDelta::seconds(LONGEST);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(resumes_at));
    // as an instance of the release before may leave it
    world.plant("update parked set wake_at = '1970-01-01T00:00:00+00:00'").await;
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Waits);
    assert_eq!(world.store.next_waiting_at().await.unwrap(), Some(resumes_at), "it is not looked at all the time");
    // nobody looked when it was time
    world.pass(LONGEST + 900);
    assert_eq!(looked_at(world).await, 1);
    assert_eq!(settle(world, run_id).await, WaitingOutcome::Resumed);
    assert_eq!(one(world, run_id).await.paused_at, None);
    world.pass(LIMIT - 1);
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved), "it has all of its time");
}

async fn run_is_paused_a_bounded_number_of_times_while_it_waits(world: &StoreHarness) {
    const MOST: usize = 100;
    let (_, started, asked) = asked(world, &["c1"]).await;
    let run_id = started.run.id;
    let pause = async || world.store.pause_suspended(EVERY, run_id, "token:t").await;
    for _ in 0..MOST {
        pause().await.unwrap();
        world.store.resume_suspended(EVERY, run_id, "token:t").await.unwrap();
    }
    let before = one(world, run_id).await;
    let refused = pause().await;
    assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("paused 100 times")), "{refused:?}");
    assert_eq!((one(world, run_id).await, before.paused_at), (before, None), "nothing has changed");
    let filter = AuditFilter { subject_id: Some(run_id), limit: 1_000, ..AuditFilter::default() };
    let acts = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    assert_eq!(acts.iter().filter(|entry| entry.action == "agent.paused").count(), MOST);
    // it is answered as before, and where it waits once more it is paused anew
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved));
    let again = go_on(world, run_id).await;
    park(world, &again, &[(question(world, &again, "c2"), None)], &[]).await;
    assert_eq!(pause().await.unwrap().paused_at, Some(world.now()));
}

async fn run_that_waits_for_nobody_is_not_paused(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let (_, waits, _) = asked(world, &["c1"]).await;
    for resumes in [false, true] {
        let change = async |scope: &Scope, id| {
            let changed = match resumes {
                false => world.store.pause_suspended(scope, id, "token:t").await,
                true => world.store.resume_suspended(scope, id, "token:t").await,
            };
            changed.unwrap_err()
        };
        let why = change(EVERY, started.run.id).await;
        assert!(
            matches!(&why, StoreError::Conflict(why) if why == "the run waits for nobody; it is `running`"),
            "{why}"
        );
        for (scope, id) in [(only("b"), waits.run.id), (Scope::Every, Uuid::nil())] {
            let why = change(&scope, id).await;
            assert!(matches!(why, StoreError::NotFound), "{why}");
        }
    }
    assert_eq!(one(world, waits.run.id).await.paused_at, None);
}

async fn runs_that_wait_are_counted_against_their_quota(world: &StoreHarness) {
    let overrides = Overrides { suspended_agents: Some(2), ..Overrides::default() };
    world.store.put_quotas("a", &overrides, "token:admin").await.unwrap();
    asked(world, &["c1", "c2"]).await;
    assert!(world.store.may_suspend("a").await.unwrap());
    asked(world, &["c1"]).await;
    assert!(!world.store.may_suspend("a").await.unwrap());
    assert!(world.store.may_suspend("b").await.unwrap());
    let standing = world.store.quota_usage("a").await.unwrap().standings[&Quota::SuspendedAgents];
    assert_eq!((standing.limit, standing.usage), (Some(2), Some(2)));
}

/// So many runs of tenant `a` may wait for people from now on.
async fn limit_to(world: &StoreHarness, most: u64) {
    let overrides = Overrides { suspended_agents: Some(most), ..Overrides::default() };
    world.store.put_quotas("a", &overrides, "token:admin").await.unwrap();
}

/// A run that is under way, and its end with one question about the call `c1`.
async fn asking(world: &StoreHarness) -> (StartedRun, Finish) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let end = parked(world, &started, &[(question(world, &started, "c1"), None)], &[]);
    (started, end)
}

async fn states(world: &StoreHarness, runs: &[&StartedRun]) -> Vec<RunState> {
    let mut states = Vec::new();
    for started in runs {
        states.push(world.get_run(started.run.id).await.state);
    }
    states
}

async fn runs_that_begin_to_wait_at_the_same_instant_are_held_to_the_quota_together(world: &StoreHarness) {
    limit_to(world, 2).await;
    let [(first, one), (second, two), (third, three)] = [asking(world).await, asking(world).await, asking(world).await];
    assert!(world.store.may_suspend("a").await.unwrap(), "each of them finds room");
    assert_eq!(world.store.finish_runs(&[one, two, three]).await.unwrap(), Vec::<Uuid>::new());
    let waits = RunState::PendingApproval;
    assert_eq!(states(world, &[&first, &second, &third]).await, [waits, waits, RunState::Queued]);
    // it goes on at once as it was: nobody is asked about it, and going on is no new attempt
    assert_eq!(list(world, EVERY, None, 10).await.len(), 2);
    assert_eq!(world.store.approvals_of_turn(third.run.id, 1).await.unwrap(), []);
    assert!(!world.store.may_suspend("a").await.unwrap());
    let again = go_on(world, third.run.id).await;
    assert_eq!(again.run.attempt, third.run.attempt);
    // once another has ended there is room for it
    world.store.cancel_run(EVERY, first.run.id, "cancelled by its owner").await.unwrap();
    park(world, &again, &[(question(world, &again, "c1"), None)], &[]).await;
    assert_eq!(states(world, &[&third]).await, [waits]);

    // and so are those that two instances park
    let other = world.other_instance().await;
    for most in 3..9 {
        limit_to(world, most).await;
        // until both instances know of it
        world.pass(6);
        let [(left, one), (right, two)] = [asking(world).await, asking(world).await];
        let (one, two) = ([one], [two]);
        let (here, there) = tokio::join!(world.store.finish_runs(&one), other.finish_runs(&two));
        assert_eq!((here.unwrap(), there.unwrap()), (vec![], vec![]));
        let mut ended = states(world, &[&left, &right]).await;
        ended.sort_by_key(|state| state.as_str());
        assert_eq!(ended, [waits, RunState::Queued], "at most {most} wait");
        assert_eq!(list(world, EVERY, None, 20).await.len() as u64, most);
        for queued in [&left, &right] {
            if states(world, &[queued]).await == [RunState::Queued] {
                world.store.cancel_run(EVERY, queued.run.id, "cancelled by its owner").await.unwrap();
            }
        }
    }
}

async fn run_that_waits_on_is_parked_whatever_the_quota_says(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1", "c2"]).await;
    limit_to(world, 0).await;
    let waits = [RunState::PendingApproval];
    // for the other one of two questions
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved));
    park(world, &go_on(world, started.run.id).await, &[], &[asked[1].id]).await;
    assert_eq!(states(world, &[&started]).await, waits);
    // for one in the place of another one
    assert_eq!(decide(world, &asked[1]).await, Ok(ApprovalStatus::Approved));
    let again = go_on(world, started.run.id).await;
    park(world, &again, &[(question(world, &again, "c2"), Some(asked[1].id))], &[]).await;
    assert_eq!(states(world, &[&started]).await, waits);

    // for the approval of a call whose fields a person has supplied
    limit_to(world, 2).await;
    let (_, supplied, asked) = asked_with(world, &["c1"], |asked| asked.proposal.kind = QuestionKind::Input).await;
    limit_to(world, 0).await;
    let given = answer(ApprovalChoice::Edit, &asked[0], "token:t");
    world.store.decide_approval(EVERY, asked[0].id, &given).await.unwrap();
    let again = go_on(world, supplied.run.id).await;
    park(world, &again, &[(question(world, &again, "c1"), None)], &[]).await;
    assert_eq!(states(world, &[&supplied]).await, waits);
    // and a call that nobody has been asked about is none of these
    world.store.cancel_run(EVERY, supplied.run.id, "cancelled by its owner").await.unwrap();
    let (fresh, end) = asking(world).await;
    world.store.finish_runs(&[end]).await.unwrap();
    assert_eq!(states(world, &[&fresh]).await, [RunState::Queued]);
}

async fn paused_run_is_cancelled_like_any_other(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    world.store.pause_suspended(EVERY, started.run.id, "token:t").await.unwrap();
    world.store.cancel_run(EVERY, started.run.id, "cancelled by its owner").await.unwrap();
    assert_eq!(world.get_run(started.run.id).await.state, RunState::Cancelled);
    assert_eq!(list(world, EVERY, None, 10).await, []);
    assert_eq!(decide(world, &asked[0]).await, Err(DecisionRefusal::Settled));

    // a call that was held is withdrawn with it, however long ago its hold would have been over
    let (_, started, asked) = asked_with(world, &["c1"], |asked| asked.proposal.undo_seconds = Some(60)).await;
    assert_eq!(decide(world, &asked[0]).await, Ok(ApprovalStatus::Approved));
    park(world, &go_on(world, started.run.id).await, &[], &[asked[0].id]).await;
    world.store.pause_suspended(EVERY, started.run.id, "token:t").await.unwrap();
    world.pass(3_600);
    world.store.cancel_run(EVERY, started.run.id, "cancelled by its owner").await.unwrap();
    assert_eq!(world.store.get_approval(EVERY, asked[0].id).await.unwrap().status, ApprovalStatus::Cancelled);
}
