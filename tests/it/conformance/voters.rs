//! Where several people have to agree: each person counts once, by however many links and tokens.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{Approval, ApprovalChoice, ApprovalStatus};
use reveille::domain::notification::{Addresses, Recipient};
use reveille::store::{DecisionOutcome, DecisionRefusal, RunRequest, StartedRun, StoredToken};
use serde_json::json;

use super::asked::{answer, asked_with, go_on};
use super::world::{LEASE, StoreHarness, leases};
use ApprovalChoice::{Approve, Cancel, Edit};

on_both!(
    votes_of_one_person_count_once_and_of_two_people_twice,
    vote_for_something_else_takes_back_the_other_votes_of_the_same_person,
    requester_is_barred_with_all_that_descends_from_them,
    person_who_asked_for_the_run_by_hand_is_barred_with_all_that_descends_from_them,
    votes_that_were_given_before_their_marks_were_kept_count_by_their_names,
);

const EVERY: &Scope = &Scope::Every;

/// A token of a tenant or of an admin, made with another one; its name on record.
async fn token(world: &StoreHarness, tenant: Option<&str>, made_with: Option<&str>) -> String {
    let id = new_id(world.now());
    let token = StoredToken {
        id,
        tenant_id: tenant.map(Into::into),
        name: "laptop".into(),
        hash: id.as_bytes().to_vec(),
        scopes: vec![],
        created_at: world.now(),
        expires_at: None,
        revoked_at: None,
        root: made_with.map(Into::into),
    };
    world.store.create_token(&token, None).await.unwrap();
    format!("token:{id}")
}

/// A recipient who is reached by this mail address; the name that their link's answers have on record.
async fn reached(world: &StoreHarness, tenant: &str, email: &str) -> String {
    let addresses = Addresses { email: Some(email.into()), ..Addresses::default() };
    let recipient = Recipient { locale: "en".into(), addresses, ..Recipient::default() };
    world.store.put_recipient(EVERY, tenant, &recipient, None).await.unwrap();
    format!("recipient:{tenant}")
}

/// A question of the tenant `a` to which two people have to agree.
async fn question(world: &StoreHarness) -> Approval {
    asked_with(world, &["c1"], |asked| asked.proposal.approvers = 2).await.2.remove(0)
}

/// Lets the run go on to its end, so that the next one of the case is alone.
async fn end(world: &StoreHarness, decided: &Approval) {
    world.succeed(&go_on(world, decided.run_id).await).await;
}

async fn put(world: &StoreHarness, to: &Approval, choice: ApprovalChoice, by: &str) -> DecisionOutcome {
    world.store.decide_approval(EVERY, to.id, &answer(choice, to, by)).await.unwrap()
}

async fn votes_of_one_person_count_once_and_of_two_people_twice(world: &StoreHarness) {
    let ann = reached(world, "a", "ann@example.org").await;
    let boss = reached(world, "boss", "boss@example.org").await;
    let twin = reached(world, "twin", "Ann@Example.org").await;
    let own = token(world, Some("a"), None).await;
    let minted = token(world, Some("a"), Some(&own)).await;
    let admin = token(world, None, None).await;
    let of_admin = token(world, None, Some(&admin)).await;
    let given = token(world, Some("a"), Some(&admin)).await;
    let other_admin = token(world, None, None).await;
    for (one, two, people) in [
        (&own, &minted, 1),
        (&ann, &own, 1),
        (&ann, &minted, 1),
        (&ann, &twin, 1),
        (&own, &twin, 1),
        (&admin, &of_admin, 1),
        (&admin, &given, 1),
        (&own, &given, 1),
        (&ann, &boss, 2),
        (&twin, &boss, 2),
        (&own, &boss, 2),
        (&ann, &admin, 2),
        (&own, &admin, 2),
        (&boss, &given, 2),
        (&boss, &of_admin, 2),
        (&admin, &other_admin, 2),
        (&admin, &"token:admin".to_owned(), 2),
    ] {
        let identities =
            [world.store.voter_identities(one).await.unwrap(), world.store.voter_identities(two).await.unwrap()];
        assert_eq!(identities[0].overlaps(&identities[1]), people == 1, "{one} {two}");
        let asked = question(world).await;
        let DecisionOutcome::Counted(first) = put(world, &asked, Approve, one).await else {
            panic!("{one} alone decided")
        };
        assert_eq!(first.agreed_count(), 1);
        match put(world, &asked, Approve, two).await {
            DecisionOutcome::Done(done) => {
                assert_eq!((people, done.status, done.agreed_count()), (2, ApprovalStatus::Approved, 2), "{one} {two}");
                end(world, &done).await;
            }
            DecisionOutcome::Counted(open) => assert_eq!((people, open.agreed_count()), (1, 1), "{one} {two}"),
            refused => panic!("{refused:?}"),
        }
    }
}

async fn vote_for_something_else_takes_back_the_other_votes_of_the_same_person(world: &StoreHarness) {
    let ann = reached(world, "a", "ann@example.org").await;
    let boss = reached(world, "boss", "boss@example.org").await;
    let own = token(world, Some("a"), None).await;
    let asked = question(world).await;
    put(world, &asked, Approve, &ann).await;
    let DecisionOutcome::Counted(open) = put(world, &asked, Edit, &own).await else { panic!("not counted") };
    assert_eq!((open.votes.len(), open.agreed_count()), (1, 1), "of two opinions the last one counts");
    assert!(
        matches!(put(world, &asked, Approve, &boss).await, DecisionOutcome::Counted(_)),
        "nobody else agrees to that"
    );
    let DecisionOutcome::Done(done) = put(world, &asked, Edit, &boss).await else { panic!("not decided") };
    assert_eq!(done.status, ApprovalStatus::Edited);
}

async fn requester_is_barred_with_all_that_descends_from_them(world: &StoreHarness) {
    let ann = reached(world, "a", "ann@example.org").await;
    let boss = reached(world, "boss", "boss@example.org").await;
    let twin = reached(world, "twin", "ann@example.org").await;
    let own = token(world, Some("a"), None).await;
    let minted = token(world, Some("a"), Some(&own)).await;
    let admin = token(world, None, None).await;
    let given = token(world, Some("a"), Some(&admin)).await;
    for (by, may) in
        [(&ann, false), (&own, false), (&minted, false), (&given, false), (&twin, false), (&boss, true), (&admin, true)]
    {
        for choice in [Approve, Cancel] {
            let bars = |asked: &mut Approval| asked.proposal.excluded_approver = Some("recipient:a".into());
            let asked = asked_with(world, &["c1"], bars).await.2.remove(0);
            match put(world, &asked, choice, by).await {
                DecisionOutcome::Done(done) => {
                    assert!(may, "{by} may not answer");
                    end(world, &done).await;
                }
                DecisionOutcome::Refused(DecisionRefusal::Excluded, _) => assert!(!may, "{by} may answer"),
                other => panic!("{other:?}"),
            }
        }
    }
}

async fn person_who_asked_for_the_run_by_hand_is_barred_with_all_that_descends_from_them(world: &StoreHarness) {
    reached(world, "a", "ann@example.org").await;
    let boss = reached(world, "boss", "boss@example.org").await;
    let operator = token(world, None, None).await;
    let minted = token(world, None, Some(&operator)).await;
    let other = token(world, None, None).await;
    let task = world.task(json!({ "interval": "1h" })).await;
    let (ended, instant) = (new_id(world.now()), world.now() - TimeDelta::hours(1));
    world.store.run_now(EVERY, task.id, ended, None, world.now(), None).await.unwrap();
    let started = start(world).await;
    assert_eq!(world.store.requester_of(EVERY, ended).await.unwrap(), None);
    world.succeed(&started).await;
    for way in ["run", "retry", "backfill"] {
        for (by, bars, may) in [
            (&operator, true, false),
            (&minted, true, false),
            (&boss, true, true),
            (&other, true, true),
            (&operator, false, true),
        ] {
            let (id, now, asker) = (new_id(world.now()), world.now(), Some(operator.as_str()));
            match way {
                "run" => {
                    let request = RunRequest { requested_by: asker.map(Into::into), ..RunRequest::default() };
                    world.store.run_now(EVERY, task.id, id, request, now, None).await.map(drop)
                }
                "retry" => world.store.retry_run(EVERY, ended, id, now, |_| Ok(None), asker).await.map(drop),
                _ => world.store.backfill(EVERY, task.id, id, &[instant], None, asker).await.map(drop),
            }
            .unwrap();
            let started = start(world).await;
            assert_eq!(world.store.requester_of(EVERY, started.run.id).await.unwrap().as_ref(), Some(&operator));
            let mut asked = super::asked::question(world, &started, "c1");
            asked.proposal.excluded_approver = bars.then(|| "recipient:a".into());
            super::asked::park(world, &started, &[(asked.clone(), None)], &[]).await;
            let refused = match put(world, &asked, Approve, by).await {
                DecisionOutcome::Done(done) => {
                    end(world, &done).await;
                    false
                }
                DecisionOutcome::Refused(DecisionRefusal::Excluded, _) => {
                    let done = put(world, &asked, Approve, &boss).await;
                    let DecisionOutcome::Done(done) = done else { panic!("{done:?}") };
                    end(world, &done).await;
                    true
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(refused, !may, "{way}: {by}");
        }
    }
}

/// Starts the one run that is ready.
async fn start(world: &StoreHarness) -> StartedRun {
    let claims = leases(&world.claim().await);
    world.store.start_runs(&claims, world.now() + LEASE).await.unwrap().started.remove(0)
}

async fn votes_that_were_given_before_their_marks_were_kept_count_by_their_names(world: &StoreHarness) {
    let asked = question(world).await;
    put(world, &asked, Approve, "token:t").await;
    let forgotten = "update approval_votes set identities = null";
    world.plant(forgotten).await;
    let DecisionOutcome::Counted(open) = put(world, &asked, Approve, "token:t").await else { panic!("not counted") };
    assert_eq!(open.agreed_count(), 1);
    assert!(matches!(put(world, &asked, Approve, "token:u").await, DecisionOutcome::Done(_)));
}
