//! Credentials: written over the version that was read, renewed by one at a time, their uses kept beside them.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::{Scope, new_id};
use reveille::base::secret::Secret;
use reveille::domain::credential::{
    Credential, CredentialIssue, CredentialIssueKind, CredentialStatus, CredentialUse, Inject, InjectForm, OAuth,
    Reference,
};
use reveille::domain::notification::credential_notice::CredentialContext;
use reveille::domain::notification::{Addresses, Delivery, Recipient, WebhookAddress};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{DependentTask, Task, TaskStatus};
use reveille::ports::vault::{self, KeySource, Vault, WithoutKeys};
use reveille::store::{
    AuditFilter, CredentialFilter, CredentialRowDraft, DeliveryFilter, PauseResult, SealedDocument, SealedRow, Store,
    StoreError, StoredCredential, UseFilter, next_generation,
};
use serde_json::json;
use sqlx::{Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

use super::approvals::plan;
use super::world::{START, StoreHarness, only};

on_both!(
    credential_reads_back_as_it_was_written,
    without_a_document_the_stored_one_is_kept,
    version_that_is_not_the_stored_one_is_refused,
    document_sealed_for_another_generation_is_refused,
    of_two_writers_of_one_version_one_wins,
    after_a_deletion_the_generation_is_another,
    scope_writes_its_own_only,
    credentials_are_listed_by_tenant_and_service,
    changes_of_a_credential_are_on_record,
    use_is_kept_and_moves_the_row_once_a_minute,
    its_last_use_is_found_among_many_that_were_refused,
    credential_uses_are_found_by_the_run,
    old_uses_are_forgotten,
    tasks_that_name_a_credential_are_found,
    tasks_that_wait_for_a_credential_go_on_with_what_is_saved,
    credential_that_is_saved_while_its_task_is_paused_leaves_none_waiting,
    tasks_that_go_on_are_changed_by_others_at_the_same_time,
    many_tasks_that_wait_go_on_in_their_order_a_few_at_a_time_each_at_its_own_instant,
    tasks_of_a_tenant_with_many_that_go_on_keep_no_other_tenants_waiting,
    task_that_is_to_go_on_is_left_alone_where_it_was_changed_meanwhile,
    task_that_is_to_go_on_is_resumed_by_another_instance_where_one_has_died,
    missed_scopes_are_kept_over_the_version_that_was_read_and_are_no_write,
    one_refreshes_at_a_time,
    refresh_is_kept_only_by_who_holds_the_lease,
    without_the_lease_a_refresh_is_kept_over_the_document_that_it_was_made_from,
    new_document_takes_the_lease_from_who_refreshes,
    credential_that_needs_consent_says_why_until_a_new_document_comes,
    notice_of_a_credential_issue_says_whom_it_concerns_and_why,
    only_what_is_under_another_key_is_rewrapped,
    recipients_with_secrets_are_found_and_written_over_what_was_read,
    tasks_with_secrets_are_found_and_written_over_what_was_read,
    change_of_the_master_key_is_on_record_and_no_tenants_business,
    document_opens_in_its_row_and_generation_only,
);

const EVERY: &Scope = &Scope::Every;

/// A credential `google/work` of a tenant, sealed under the key `old` for the generation of [`START`].
pub fn credential(tenant: &str) -> CredentialRowDraft {
    CredentialRowDraft {
        tenant_id: tenant.into(),
        service: "google".into(),
        account_name: "work".into(),
        hosts: vec!["api.example.org".into(), "*.example.net:8443".into()],
        inject: Some(Inject {
            form: InjectForm::Header,
            from: Some("/key".into()),
            name: Some("X-Key".into()),
            template: None,
        }),
        oauth: None,
        document: Some(document("v1:old:one", START.timestamp_millis())),
        by: "token:t".into(),
    }
}

pub fn used(tenant: &str, at: DateTime<Utc>) -> CredentialUse {
    CredentialUse {
        id: new_id(at),
        tenant_id: tenant.into(),
        service: "google".into(),
        account_name: "work".into(),
        at,
        run_id: Some(Uuid::from_u128(1)),
        task_id: Some(Uuid::from_u128(2)),
        used_by: "tool:http_send".into(),
        host: "api.example.org".into(),
        outcome: CredentialUse::USED.into(),
    }
}

fn document(sealed: &str, generation: i64) -> SealedDocument {
    SealedDocument { sealed: sealed.into(), generation, key_id: "old".into(), expires_at: None }
}

async fn put(world: &StoreHarness) -> StoredCredential {
    world.store.put_credential(EVERY, &credential("a"), 0).await.unwrap().stored
}

async fn get(world: &StoreHarness) -> StoredCredential {
    world.store.get_credential(&only("a"), "a", "google", "work").await.unwrap()
}

async fn credential_reads_back_as_it_was_written(world: &StoreHarness) {
    let none = world.store.get_credential(EVERY, "a", "google", "work").await;
    assert!(matches!(none, Err(StoreError::NotFound)), "{none:?}");
    let first = put(world).await;
    let expected = StoredCredential {
        credential: Credential {
            id: first.credential.id,
            tenant_id: "a".into(),
            service: "google".into(),
            account_name: "work".into(),
            hosts: vec!["api.example.org".into(), "*.example.net:8443".into()],
            inject: credential("a").inject,
            oauth: None,
            status: CredentialStatus::Active,
            status_reason: None,
            expires_at: None,
            version: 1,
            created_at: START,
            updated_at: START,
            last_used_at: None,
        },
        sealed: "v1:old:one".into(),
        generation: START.timestamp_millis(),
        key_id: "old".into(),
    };
    assert_eq!(first, expected);
    assert_eq!(get(world).await, expected);

    world.pass(5);
    let oauth = OAuth {
        provider: Some("google".into()),
        issuer: Some("https://accounts.google.com".into()),
        token_url: None,
        client_id: None,
        client_auth: None,
        scopes: vec!["mail".into()],
        missed_scopes: vec!["calendar".into()],
    };
    let expires_at = Some(START + TimeDelta::hours(1));
    let new = CredentialRowDraft {
        hosts: vec![],
        inject: None,
        oauth: Some(oauth.clone()),
        document: Some(SealedDocument {
            sealed: "v1:new:two".into(),
            generation: next_generation(Some(&first), world.now()),
            key_id: "new".into(),
            expires_at,
        }),
        ..credential("a")
    };
    let second = world.store.put_credential(&only("a"), &new, 1).await.unwrap().stored;
    let expected = StoredCredential {
        credential: Credential {
            hosts: vec![],
            inject: None,
            oauth: Some(oauth),
            expires_at,
            version: 2,
            updated_at: world.now(),
            ..expected.credential
        },
        sealed: "v1:new:two".into(),
        generation: START.timestamp_millis() + 1,
        key_id: "new".into(),
    };
    assert_eq!(second, expected);
    assert_eq!(get(world).await, expected);
}

async fn without_a_document_the_stored_one_is_kept(world: &StoreHarness) {
    let nothing = CredentialRowDraft { document: None, ..credential("a") };
    let refused = world.store.put_credential(EVERY, &nothing, 0).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    let first = put(world).await;
    let moved = CredentialRowDraft { hosts: vec!["other.example.org".into()], ..nothing };
    let second = world.store.put_credential(EVERY, &moved, 1).await.unwrap().stored;
    let expected = Credential { hosts: moved.hosts, version: 2, ..first.credential };
    assert_eq!(second, StoredCredential { credential: expected, ..first });
}

async fn version_that_is_not_the_stored_one_is_refused(world: &StoreHarness) {
    let early = world.store.put_credential(EVERY, &credential("a"), 1).await;
    assert!(matches!(early, Err(StoreError::Conflict(_))), "there is none yet: {early:?}");
    let first = put(world).await;
    for version in [0, 2] {
        let new =
            CredentialRowDraft { document: Some(document("v1:old:two", first.generation + 1)), ..credential("a") };
        let refused = world.store.put_credential(EVERY, &new, version).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    }
    assert_eq!(get(world).await, first);
}

async fn document_sealed_for_another_generation_is_refused(world: &StoreHarness) {
    let first = put(world).await;
    for generation in [first.generation, first.generation + 2, 1] {
        let new = CredentialRowDraft { document: Some(document("v1:old:two", generation)), ..credential("a") };
        let refused = world.store.put_credential(EVERY, &new, 1).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    }
    assert_eq!(get(world).await, first);
}

async fn of_two_writers_of_one_version_one_wins(world: &StoreHarness) {
    let other = world.other_instance().await;
    let mut stored: Option<StoredCredential> = None;
    for version in 0..5 {
        let generation = next_generation(stored.as_ref(), START);
        let new = |sealed: &str| CredentialRowDraft { document: Some(document(sealed, generation)), ..credential("a") };
        let (ours, theirs) = (new("ours"), new("theirs"));
        let (one, two) = tokio::join!(
            world.store.put_credential(EVERY, &ours, version),
            other.put_credential(EVERY, &theirs, version)
        );
        assert_ne!(one.is_ok(), two.is_ok());
        let winner = one.or(two).unwrap().stored;
        assert_eq!(get(world).await, winner);
        stored = Some(winner);
    }
}

async fn after_a_deletion_the_generation_is_another(world: &StoreHarness) {
    let first = put(world).await;
    world.store.delete_credential(&only("a"), "a", "google", "work", "token:t").await.unwrap();
    let gone = world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await;
    assert!(matches!(gone, Err(StoreError::NotFound)), "{gone:?}");
    world.pass(1);
    assert!(next_generation(None, world.now()) > next_generation(Some(&first), world.now()));
}

async fn scope_writes_its_own_only(world: &StoreHarness) {
    let refused = world.store.put_credential(&only("b"), &credential("a"), 0).await;
    assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    world.store.put_credential(&only("a"), &credential("a"), 0).await.unwrap();
    // the same name of another tenant is another credential
    world.store.put_credential(&only("b"), &credential("b"), 0).await.unwrap();
    world.store.delete_credential(&only("b"), "b", "google", "work", "token:t").await.unwrap();
    get(world).await;
}

async fn credentials_are_listed_by_tenant_and_service(world: &StoreHarness) {
    for (tenant, service, account) in
        [("a", "google", "work"), ("a", "google", "home"), ("a", "shop", "work"), ("b", "shop", "x")]
    {
        let new = CredentialRowDraft { service: service.into(), account_name: account.into(), ..credential(tenant) };
        world.store.put_credential(EVERY, &new, 0).await.unwrap();
    }
    let listed = async |scope: &Scope, filter: CredentialFilter| -> Vec<(String, Uuid)> {
        let found = world.store.list_credentials(scope, &filter).await.unwrap();
        let name =
            |credential: Credential| (format!("{} {}", credential.tenant_id, credential.reference()), credential.id);
        found.rows.into_iter().map(name).collect()
    };
    let names = |listed: &[(String, Uuid)]| listed.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let all = CredentialFilter { limit: 9, ..CredentialFilter::default() };
    let every = listed(EVERY, all.clone()).await;
    assert_eq!(names(&every), ["b shop/x", "a shop/work", "a google/home", "a google/work"]);
    assert_eq!(names(&listed(&only("a"), all.clone()).await), ["a shop/work", "a google/home", "a google/work"]);
    let of_b = CredentialFilter { tenant: Some("b".into()), ..all.clone() };
    assert_eq!(names(&listed(EVERY, of_b).await), ["b shop/x"]);
    let shops = CredentialFilter { service: Some("shop".into()), ..all.clone() };
    assert_eq!(names(&listed(EVERY, shops).await), ["b shop/x", "a shop/work"]);
    let usable = CredentialFilter { status: Some(CredentialStatus::Active), ..all.clone() };
    assert_eq!(listed(EVERY, usable).await, every);
    let broken = CredentialFilter { status: Some(CredentialStatus::NeedsConsent), ..all.clone() };
    assert_eq!(listed(EVERY, broken).await, []);
    let behind = CredentialFilter { before: Some(every[1].1), limit: 1, ..all };
    assert_eq!(names(&listed(EVERY, behind).await), ["a google/home"]);
}

async fn changes_of_a_credential_are_on_record(world: &StoreHarness) {
    let first = put(world).await;
    let new = CredentialRowDraft { document: None, by: "token:u".into(), hosts: vec![], ..credential("a") };
    world.store.put_credential(EVERY, &new, 1).await.unwrap();
    world.store.delete_credential(EVERY, "a", "google", "work", "token:v").await.unwrap();
    let filter = AuditFilter { subject_id: Some(first.credential.id), limit: 9, ..AuditFilter::default() };
    let acts = world.store.audit_page(&only("a"), &filter).await.unwrap().rows;
    let acts: Vec<_> = acts.iter().map(|act| (act.action.as_str(), act.actor.as_str(), &act.body)).collect();
    let hosts = json!(["api.example.org", "*.example.net:8443"]);
    assert_eq!(
        acts,
        [
            (
                "credential.deleted",
                "token:v",
                &json!({"credential": "google/work", "hosts": [], "document": false, "version": 2})
            ),
            (
                "credential.put",
                "token:u",
                &json!({"credential": "google/work", "hosts": [], "document": false, "version": 2})
            ),
            (
                "credential.put",
                "token:t",
                &json!({"credential": "google/work", "hosts": hosts, "document": true, "version": 1})
            ),
        ]
    );
}

async fn use_is_kept_and_moves_the_row_once_a_minute(world: &StoreHarness) {
    put(world).await;
    let mut uses = vec![];
    let mut last_used = vec![];
    for (seconds, outcome) in [(0, "missing"), (1, "used"), (59, "used"), (1, "used"), (30, "used")] {
        world.pass(seconds);
        let used = CredentialUse { outcome: outcome.into(), ..used("a", world.now()) };
        world.store.note_credential_use(&used).await.unwrap();
        uses.insert(0, used);
        let stored = get(world).await.credential;
        assert_eq!(stored.version, 1, "a use is no write");
        last_used.push(stored.last_used_at.map(|at| (at - START).num_seconds()));
    }
    assert_eq!(last_used, [None, Some(1), Some(1), Some(61), Some(61)]);

    let listed = async |filter: UseFilter| world.store.credential_uses(&only("a"), &filter).await.unwrap();
    let all = UseFilter { limit: 9, ..UseFilter::default() };
    assert_eq!(listed(all.clone()).await, uses);
    let missing = listed(UseFilter { outcome: Some("missing"), ..all.clone() }).await;
    assert_eq!(missing.iter().map(|used| used.outcome.as_str()).collect::<Vec<_>>(), ["missing"]);
    let page = UseFilter { before: Some(uses[1].id), limit: 2, ..all.clone() };
    assert_eq!(listed(page).await, uses[2..4]);
    let named = |service: &str, account: &str| UseFilter {
        tenant: Some("a".into()),
        service: Some(service.into()),
        account: Some(account.into()),
        ..all.clone()
    };
    assert_eq!(listed(named("google", "work")).await.len(), 5);
    assert_eq!(listed(named("google", "home")).await, []);
    assert_eq!(listed(named("shop", "work")).await, []);
}

async fn its_last_use_is_found_among_many_that_were_refused(world: &StoreHarness) {
    put(world).await;
    let last = used("a", world.now());
    world.store.note_credential_use(&last).await.unwrap();
    refused_often(world).await;
    let filter = UseFilter {
        service: Some("google".into()),
        account: Some("work".into()),
        outcome: Some(CredentialUse::USED),
        limit: 1,
        ..UseFilter::default()
    };
    assert_eq!(world.store.credential_uses(&only("a"), &filter).await.unwrap(), [last]);
    let statement = "select id from credential_uses where true and tenant_id = 'a' and service = 'google'
                      and account = 'work' and outcome = 'used' order by id desc limit 1";
    let plan = plan(world, statement).await;
    assert!(plan.contains("credential_uses_last"), "{plan}");
}

/// Many uses that were refused, counted by the database.
async fn refused_often(world: &StoreHarness) {
    let url = world.url();
    let columns = "insert into credential_uses (id, tenant_id, service, account, at, used_by, host, outcome)";
    if world.is_postgres() {
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let insert = format!(
            "{columns} select gen_random_uuid(), 'a', 'google', 'work', now(), 'poll', 'h', 'missing'
               from generate_series(1, 5000)"
        );
        for statement in ["set reveille.tenant = '*'", &insert, "analyze credential_uses"] {
            let statement = sqlx::AssertSqlSafe(statement.to_owned());
            sqlx::query(statement).execute(&mut connection).await.unwrap();
        }
    } else {
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        let insert = format!(
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 5000)
             {columns} select randomblob(16), 'a', 'google', 'work', '2026-03-01', 'poll', 'h', 'missing' from n"
        );
        for statement in [&insert, "analyze credential_uses"] {
            let statement = sqlx::AssertSqlSafe(statement.to_owned());
            sqlx::query(statement).execute(&mut connection).await.unwrap();
        }
    }
}

async fn credential_uses_are_found_by_the_run(world: &StoreHarness) {
    refused_often(world).await;
    let run = Uuid::from_u128(7);
    let by = |service: &str, run_id| CredentialUse { service: service.into(), run_id, ..used("a", world.now()) };
    let note = async |used: &CredentialUse| world.store.note_credential_use(used).await.unwrap();
    note(&by("early", Some(run))).await;
    world.pass(60);
    let since = world.now();
    for used in [by("google", Some(run)), by("google", Some(run)), by("shop", Some(run)), by("other", None)] {
        note(&used).await;
    }
    for outcome in ["too_many", "missing"] {
        note(&CredentialUse { outcome: outcome.into(), ..by("not_sent", Some(run)) }).await;
    }
    let found = async |tenant: &'static str, limit| -> Vec<String> {
        let found = world.store.credentials_used_by(tenant, run, since, limit).await.unwrap();
        let mut names: Vec<String> = found.into_iter().map(|one| one.service).collect();
        names.sort();
        names
    };
    assert_eq!(found("a", 9).await, ["google", "shop"]);
    assert_eq!((found("a", 1).await.len(), found("b", 9).await.len()), (1, 0));
    let id = if world.is_postgres() { format!("'{run}'") } else { format!("x'{}'", run.simple()) };
    let statement =
        format!("select distinct service, account from credential_uses where tenant_id = 'a' and run_id = {id}");
    let plan = plan(world, &statement).await;
    assert!(plan.contains("credential_uses_of_run"), "{plan}");

    let taken_back = by("taken_back", Some(run));
    note(&taken_back).await;
    world.store.mark_credential_use(taken_back.id, "refused").await.unwrap();
    assert_eq!(found("a", 9).await, ["google", "shop", "taken_back"], "one that is refused was sent");
    let refused = UseFilter { outcome: Some("refused"), limit: 9, ..UseFilter::default() };
    let listed = world.store.credential_uses(EVERY, &refused).await.unwrap();
    assert_eq!(listed, [CredentialUse { outcome: "refused".into(), ..taken_back }]);
}

async fn old_uses_are_forgotten(world: &StoreHarness) {
    for _ in 0..3 {
        world.store.note_credential_use(&used("a", world.now())).await.unwrap();
        world.pass(10);
    }
    let before = START + TimeDelta::seconds(15);
    assert_eq!(world.store.forget_credential_uses(before, 1).await.unwrap(), 1);
    assert_eq!(world.store.forget_credential_uses(before, 9).await.unwrap(), 1);
    let left = world.store.credential_uses(EVERY, &UseFilter { limit: 9, ..UseFilter::default() }).await.unwrap();
    assert_eq!(left.iter().map(|used| used.at).collect::<Vec<_>>(), [START + TimeDelta::seconds(20)]);
}

async fn tasks_that_name_a_credential_are_found(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h"})).await;
    let other = world.task_with("b", json!({"interval": "1h"}), json!({})).await;
    for task in [&task, &other] {
        let id = match world.is_postgres() {
            true => format!("'{}'", task.id),
            false => format!("x'{}'", task.id.simple()),
        };
        let tenant = &task.tenant_id;
        let sql = format!(
            "insert into task_credentials (task_id, tenant_id, service, account) values ({id}, '{tenant}', 'google', 'work')"
        );
        world.plant(&sql).await;
    }
    let found = async |scope: &Scope, name: &str| {
        world.store.tasks_of_credential(scope, "a", &Reference::parse(name).unwrap(), &[]).await.unwrap()
    };
    let expected = [DependentTask::of(&task)];
    assert_eq!(found(EVERY, "google/work").await, expected);
    assert_eq!(found(&only("a"), "google/work").await, expected);
    assert_eq!(found(&only("b"), "google/work").await, []);
    assert_eq!(found(EVERY, "google").await, []);
}

async fn tasks_that_wait_for_a_credential_go_on_with_what_is_saved(world: &StoreHarness) {
    let lack = |kind, sent_at| CredentialIssue { credential: Reference::parse("google/work").unwrap(), kind, sent_at };
    let missing = lack(CredentialIssueKind::Missing, None);
    let hourly = || json!({"interval": "1h"});
    let waiting = world.task(hourly()).await;
    let (by_hand, foreign) = (world.task(hourly()).await, world.task_with("b", hourly(), json!({})).await);
    for task in [&waiting, &foreign] {
        assert_eq!(world.store.pause_for_credential(task.id, &missing).await.unwrap(), PauseResult::Paused);
    }
    // the words of a reason are a person's, whatever they name
    let reason = Some("credential:google/work".to_owned());
    world.store.change_task(EVERY, by_hand.id, &TaskChange::Pause { reason }).await.unwrap();
    world.pass(7200);
    let saved = world.store.put_credential(&only("a"), &credential("a"), 0).await.unwrap();
    let going = world.get_task(waiting.id).await;
    assert_eq!(saved.resumed, [DependentTask::of(&going)]);
    assert_eq!((going.status, going.status_reason.as_deref(), going.version), (TaskStatus::Active, None, 3));
    assert!(going.next_fire_at.is_some_and(|next| next > world.now()), "{:?}", going.next_fire_at);
    for task in [&by_hand, &foreign] {
        assert_eq!(world.get_task(task.id).await.status, TaskStatus::Paused);
    }
    // it is there: a run that came too early for it pauses nothing
    assert_eq!(world.store.pause_for_credential(waiting.id, &missing).await.unwrap(), PauseResult::Resolved);
    let refused = |seconds| lack(CredentialIssueKind::Refused, Some(in_seconds(world, seconds)));
    assert_eq!(world.store.pause_for_credential(waiting.id, &refused(-1)).await.unwrap(), PauseResult::Resolved);
    assert_eq!(world.store.pause_for_credential(waiting.id, &refused(0)).await.unwrap(), PauseResult::Paused);
    // what its other side has ended stays so with other hosts
    let stored = saved.stored;
    let lease = claim(&world.store, world, &stored).await.unwrap();
    world.store.mark_needs_consent(stored.credential.id, lease, "revoked").await.unwrap();
    let other_hosts = CredentialRowDraft { document: None, ..credential("a") };
    assert_eq!(world.store.put_credential(EVERY, &other_hosts, 2).await.unwrap().resumed, []);
    assert_eq!(world.get_task(waiting.id).await.status, TaskStatus::Paused);
}

async fn credential_that_is_saved_while_its_task_is_paused_leaves_none_waiting(world: &StoreHarness) {
    let other = world.other_instance().await;
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    // of two whose events are indexed in one place, and whether or not they name what their tools use
    let event = json!({"type": "event", "source": "shop"});
    let task = world.task_with("a", event.clone(), json!({"action": {"config": {"credential": "google/work"}}})).await;
    let unnamed = world.task_with("a", event, json!({})).await;
    for round in 0..20 {
        let task = if round % 2 == 0 { &task } else { &unnamed };
        let new = credential("a");
        let (paused, saved) =
            tokio::join!(other.pause_for_credential(task.id, &lack), world.store.put_credential(EVERY, &new, 0));
        let went_on = saved.unwrap().resumed.len();
        match paused.unwrap() {
            PauseResult::Paused => assert_eq!(went_on, 1),
            PauseResult::Resolved => assert_eq!(went_on, 0),
            PauseResult::Notified => panic!("it was not paused before"),
        }
        assert_eq!(world.get_task(task.id).await.status, TaskStatus::Active);
        world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
        world.pass(1);
    }
}

async fn tasks_that_go_on_are_changed_by_others_at_the_same_time(world: &StoreHarness) {
    let other = world.other_instance().await;
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    // their events are indexed in one place
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(world.task_with("a", json!({"type": "event", "source": "shop"}), json!({})).await);
    }
    for _ in 0..20 {
        for task in &tasks {
            assert_eq!(world.store.pause_for_credential(task.id, &lack).await.unwrap(), PauseResult::Paused);
        }
        let new = credential("a");
        let (saved, by_hand) = tokio::join!(
            world.store.put_credential(EVERY, &new, 0),
            other.change_task(EVERY, tasks[2].id, &TaskChange::Resume)
        );
        assert!(saved.unwrap().resumed.len() >= 2);
        assert!(matches!(by_hand, Ok(_) | Err(StoreError::Conflict(_))), "{by_hand:?}");
        for task in &tasks {
            assert_eq!(world.get_task(task.id).await.status, TaskStatus::Active);
        }
        world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
        world.pass(1);
    }
}

/// So many tasks of tenant `a` that are paused for want of the credential, in the order of their ids.
async fn paused_tasks(world: &StoreHarness, count: usize) -> Vec<Task> {
    paused_tasks_of(world, "a", count).await
}

/// So many tasks of this tenant that are paused for want of its credential, in the order of their ids.
async fn paused_tasks_of(world: &StoreHarness, tenant: &str, count: usize) -> Vec<Task> {
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    let mut tasks = Vec::new();
    for _ in 0..count {
        let task = world.task_with(tenant, json!({"interval": "1h"}), json!({})).await;
        assert_eq!(world.store.pause_for_credential(task.id, &lack).await.unwrap(), PauseResult::Paused);
        tasks.push(task);
        world.pass(1);
    }
    tasks
}

async fn are_active(world: &StoreHarness, tasks: &[Task]) -> Vec<bool> {
    let mut active = Vec::new();
    for task in tasks {
        active.push(world.get_task(task.id).await.status == TaskStatus::Active);
    }
    active
}

async fn many_tasks_that_wait_go_on_in_their_order_a_few_at_a_time_each_at_its_own_instant(world: &StoreHarness) {
    let tasks = paused_tasks(world, 26).await;
    let foreign = world.task_with("b", json!({"interval": "1h"}), json!({})).await;
    assert!(!world.pending_work().await.resumption);
    let saved = world.store.put_credential(&only("a"), &credential("a"), 0).await.unwrap();
    let ids = |tasks: &[Task]| tasks.iter().map(|task| task.id).collect::<Vec<_>>();
    assert_eq!(saved.resumed.iter().map(|task| task.id).collect::<Vec<_>>(), ids(&tasks[..20]));
    assert_eq!((saved.resuming, world.pending_work().await.resumption), (6, true));
    let first = world.get_task(tasks[0].id).await;
    world.pass(60);
    // saved once more, by who has refreshed it or by a person: nothing is resumed twice
    let again =
        world.store.put_credential(EVERY, &CredentialRowDraft { document: None, ..credential("a") }, 1).await.unwrap();
    assert_eq!((again.resumed.len(), again.resuming), (6, 0));
    assert_eq!(world.store.resume_next(9).await.unwrap(), 0, "they went on with the second save");
    assert_eq!(are_active(world, &tasks).await, [true; 26]);
    assert_eq!(world.get_task(tasks[0].id).await, first);
    // and now in pieces
    world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    for task in &tasks {
        assert_eq!(world.store.pause_for_credential(task.id, &lack).await.unwrap(), PauseResult::Paused);
    }
    world.store.put_credential(&only("a"), &credential("a"), 0).await.unwrap();
    for (limit, resumed, goes_on) in [(2, 2, 22), (3, 3, 25), (3, 1, 26)] {
        world.pass(7);
        assert_eq!(world.store.resume_next(limit).await.unwrap(), resumed);
        let active = are_active(world, &tasks).await;
        assert_eq!(active.iter().filter(|active| **active).count(), goes_on);
        assert!(active[..goes_on].iter().all(|active| *active), "in their order: {active:?}");
        let last = world.get_task(tasks[goes_on - 1].id).await;
        assert_eq!((last.active_since, last.updated_at), (world.now(), world.now()), "at its own instant");
        assert!(last.next_fire_at.is_some_and(|next| next > world.now()));
    }
    assert_eq!(world.store.resume_next(9).await.unwrap(), 0);
    assert!(!world.pending_work().await.resumption);
    assert_eq!(world.get_task(foreign.id).await.version, 1);
}

async fn tasks_of_a_tenant_with_many_that_go_on_keep_no_other_tenants_waiting(world: &StoreHarness) {
    let (many, few) = (paused_tasks_of(world, "a", 30).await, paused_tasks_of(world, "b", 22).await);
    for tenant in ["a", "b"] {
        world.store.put_credential(EVERY, &credential(tenant), 0).await.unwrap();
    }
    let going_on = async || {
        let active = (are_active(world, &many).await, are_active(world, &few).await);
        [active.0, active.1].map(|active| active.iter().filter(|active| **active).count())
    };
    assert_eq!(going_on().await, [20, 20]);
    // one at a time, tenants in turn; then both in a batch; then what is left of one
    for (limit, resumed, active) in [(1, 1, [21, 20]), (1, 1, [21, 21]), (4, 3, [23, 22]), (4, 4, [27, 22])] {
        assert_eq!(world.store.resume_next(limit).await.unwrap(), resumed);
        assert_eq!(going_on().await, active);
    }
    assert_eq!(world.store.resume_next(9).await.unwrap(), 3);
    assert_eq!((going_on().await, world.store.resume_next(9).await.unwrap()), ([30, 22], 0));
}

async fn task_that_is_to_go_on_is_left_alone_where_it_was_changed_meanwhile(world: &StoreHarness) {
    let tasks = paused_tasks(world, 26).await;
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    world.store.put_credential(EVERY, &credential("a"), 0).await.unwrap();
    let [by_hand, otherwise, deleted, edited, again, plain] = &tasks[20..] else { panic!("six are left") };
    world.store.change_task(EVERY, by_hand.id, &TaskChange::Resume).await.unwrap();
    let holiday = TaskChange::Pause { reason: Some("holiday".into()) };
    world.store.change_task(EVERY, otherwise.id, &holiday).await.unwrap();
    world.store.delete_task(EVERY, deleted.id).await.unwrap();
    let stored = world.get_task(edited.id).await;
    let edit = TaskChange::Edit { version: stored.version, name: "renamed".into(), spec: Box::new(stored.spec) };
    world.store.change_task(EVERY, edited.id, &edit).await.unwrap();
    // it went on by hand, and lacks the credential still: that is no reason to resume it once more
    world.store.change_task(EVERY, again.id, &TaskChange::Resume).await.unwrap();
    let refused = CredentialIssue { kind: CredentialIssueKind::Refused, sent_at: Some(in_seconds(world, 1)), ..lack };
    assert_eq!(world.store.pause_for_credential(again.id, &refused).await.unwrap(), PauseResult::Paused);
    let resumed_by_hand = world.get_task(by_hand.id).await;
    world.pass(5);
    assert_eq!(world.store.resume_next(9).await.unwrap(), 2, "the others are there no more");
    assert_eq!(world.get_task(by_hand.id).await, resumed_by_hand);
    let renamed = world.get_task(edited.id).await;
    assert_eq!((renamed.status, renamed.name.as_str()), (TaskStatus::Active, "renamed"));
    assert_eq!(world.get_task(plain.id).await.status, TaskStatus::Active);
    assert_eq!(world.get_task(otherwise.id).await.status_reason.as_deref(), Some("holiday"));
    assert_eq!(world.get_task(again.id).await.status, TaskStatus::Paused);
    // what is saved and ended again resumes nothing
    world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
    let more = paused_tasks(world, 22).await;
    world.store.put_credential(EVERY, &credential("a"), 0).await.unwrap();
    world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
    assert!(world.store.resume_next(9).await.unwrap() > 0);
    assert_eq!(world.store.resume_next(9).await.unwrap(), 0);
    assert_eq!(world.get_task(more[21].id).await.status, TaskStatus::Paused);
}

async fn task_that_is_to_go_on_is_resumed_by_another_instance_where_one_has_died(world: &StoreHarness) {
    let tasks = paused_tasks(world, 24).await;
    world.store.put_credential(EVERY, &credential("a"), 0).await.unwrap();
    // an instance claims two, and dies before it resumes them
    let until = if world.is_postgres() { "timestamptz" } else { "text" };
    let instant = in_seconds(world, 30).to_rfc3339();
    let claimed = format!("update resumptions set claimed_until = cast('{instant}' as {until}) where seq <= 2");
    world.plant(&claimed).await;
    let other = world.other_instance().await;
    let (here, there) = tokio::join!(world.store.resume_next(1), other.resume_next(1));
    assert_eq!((here.unwrap(), there.unwrap()), (1, 1), "each takes another one");
    assert_eq!(other.resume_next(9).await.unwrap(), 0);
    assert_eq!(are_active(world, &tasks[20..]).await, [false, false, true, true]);
    assert!(world.pending_work().await.resumption);
    world.pass(30);
    assert_eq!(other.resume_next(9).await.unwrap(), 2);
    assert_eq!(are_active(world, &tasks[20..]).await, [true; 4]);
    if world.is_postgres() {
        other.close().await;
    }
}

fn in_seconds(world: &StoreHarness, seconds: i64) -> DateTime<Utc> {
    world.now() + TimeDelta::seconds(seconds)
}

async fn claim(store: &Store, world: &StoreHarness, read: &StoredCredential) -> Option<i64> {
    let until = in_seconds(world, 30);
    store.claim_refresh(read.credential.id, read.credential.version, until).await.unwrap()
}

async fn missed_scopes_are_kept_over_the_version_that_was_read_and_are_no_write(world: &StoreHarness) {
    let read = put(world).await;
    let (id, version) = (read.credential.id, read.credential.version);
    let oauth = OAuth { provider: Some("google".into()), missed_scopes: vec!["mail".into()], ..OAuth::default() };
    world.pass(5);
    assert!(!world.store.note_missed_scopes(id, version + 1, &oauth).await.unwrap());
    assert!(!world.store.note_missed_scopes(new_id(world.now()), version, &oauth).await.unwrap());
    assert_eq!(get(world).await, read);
    assert!(world.store.note_missed_scopes(id, version, &oauth).await.unwrap());
    let credential = Credential { oauth: Some(oauth), ..read.credential.clone() };
    assert_eq!(get(world).await, StoredCredential { credential, ..read });
}

async fn one_refreshes_at_a_time(world: &StoreHarness) {
    let other = world.other_instance().await;
    let read = put(world).await;
    let (one, two) = tokio::join!(claim(&world.store, world, &read), claim(&other, world, &read));
    assert_ne!(one.is_some(), two.is_some());
    let first = one.or(two).unwrap();
    assert_eq!(claim(&other, world, &read).await, None);
    // given back, or left behind by one that died
    world.store.release_refresh(read.credential.id, first).await.unwrap();
    let second = claim(&other, world, &read).await.unwrap();
    assert_ne!(first, second);
    world.store.release_refresh(read.credential.id, first).await.unwrap();
    assert_eq!(claim(&other, world, &read).await, None, "a lost lease gives nothing back");
    world.pass(30);
    assert!(claim(&other, world, &read).await.is_some());
    // who has read an older version has to read again
    let stale = StoredCredential {
        credential: Credential { version: read.credential.version + 1, ..read.credential.clone() },
        ..read
    };
    world.pass(30);
    assert_eq!(claim(&other, world, &stale).await, None);
}

async fn refresh_is_kept_only_by_who_holds_the_lease(world: &StoreHarness) {
    let read = put(world).await;
    let lost = claim(&world.store, world, &read).await.unwrap();
    world.pass(30);
    let lease = claim(&world.store, world, &read).await.unwrap();
    let (id, expires_at) = (read.credential.id, Some(in_seconds(world, 3600)));
    let new = SealedDocument { expires_at, ..document("v1:old:two", read.generation + 1) };
    let refused = world.store.store_refreshed(id, Some(lost), &new).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    let refused = world.store.mark_needs_consent(id, lost, "invalid_grant").await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    let skipping = document("v1:old:two", read.generation + 2);
    let refused = world.store.store_refreshed(id, Some(lease), &skipping).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    assert_eq!(get(world).await, read);

    // hosts may change meanwhile: what the other side has given out is not lost for that
    let moved = CredentialRowDraft { document: None, hosts: vec![], ..credential("a") };
    world.store.put_credential(EVERY, &moved, 1).await.unwrap();
    let stored = world.store.store_refreshed(id, Some(lease), &new).await.unwrap();
    let credential =
        Credential { hosts: vec![], expires_at, version: 3, updated_at: world.now(), ..read.credential.clone() };
    let expected = StoredCredential {
        credential,
        sealed: "v1:old:two".into(),
        generation: read.generation + 1,
        key_id: "old".into(),
    };
    assert_eq!(stored, expected);
    assert_eq!(get(world).await, expected);
    let again = world.store.store_refreshed(id, Some(lease), &document("v1:old:three", read.generation + 2)).await;
    assert!(matches!(again, Err(StoreError::LeaseLost)), "a lease is good for one refresh: {again:?}");
    assert!(claim(&world.store, world, &stored).await.is_some(), "it was given back");
}

async fn without_the_lease_a_refresh_is_kept_over_the_document_that_it_was_made_from(world: &StoreHarness) {
    let read = put(world).await;
    let lease = claim(&world.store, world, &read).await.unwrap();
    // its other side ended it for somebody who came with what was spent
    world.store.mark_needs_consent(read.credential.id, lease, "invalid_grant").await.unwrap();
    let task = world.task(json!({"interval": "1h"})).await;
    let ended = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::NeedsConsent,
        sent_at: None,
    };
    assert_eq!(world.store.pause_for_credential(task.id, &ended).await.unwrap(), PauseResult::Paused);
    let next = document("v1:old:late", read.generation + 1);
    let stored = world.store.store_refreshed(read.credential.id, None, &next).await.unwrap();
    assert_eq!((stored.sealed.as_str(), stored.credential.status), ("v1:old:late", CredentialStatus::Active));
    assert_eq!(world.get_task(task.id).await.status, TaskStatus::Active, "it goes on with what came late");
    let again = world.store.store_refreshed(read.credential.id, None, &document("other", read.generation + 1)).await;
    assert!(matches!(again, Err(StoreError::LeaseLost)), "{again:?}");
    assert_eq!(get(world).await, stored);
}

async fn new_document_takes_the_lease_from_who_refreshes(world: &StoreHarness) {
    let read = put(world).await;
    let lease = claim(&world.store, world, &read).await.unwrap();
    let new = CredentialRowDraft { document: Some(document("v1:old:given", read.generation + 1)), ..credential("a") };
    let given = world.store.put_credential(EVERY, &new, 1).await.unwrap().stored;
    for generation in [read.generation + 1, read.generation + 2] {
        let late = world.store.store_refreshed(read.credential.id, Some(lease), &document("late", generation)).await;
        assert!(matches!(late, Err(StoreError::LeaseLost)), "{late:?}");
    }
    assert_eq!(get(world).await, given);
    assert!(claim(&world.store, world, &given).await.is_some());
}

async fn credential_that_needs_consent_says_why_until_a_new_document_comes(world: &StoreHarness) {
    let read = put(world).await;
    let lease = claim(&world.store, world, &read).await.unwrap();
    let marked = world.store.mark_needs_consent(read.credential.id, lease, "invalid_grant: revoked").await.unwrap();
    let expected = Credential {
        status: CredentialStatus::NeedsConsent,
        status_reason: Some("invalid_grant: revoked".into()),
        version: 2,
        ..read.credential.clone()
    };
    assert_eq!(marked, StoredCredential { credential: expected, ..read.clone() });
    assert_eq!(claim(&world.store, world, &marked).await, None, "there is nothing to refresh");

    let other_hosts = CredentialRowDraft { document: None, ..credential("a") };
    let still = world.store.put_credential(EVERY, &other_hosts, 2).await.unwrap().stored;
    assert_eq!(still.credential.status, CredentialStatus::NeedsConsent);
    let new = CredentialRowDraft { document: Some(document("v1:old:two", read.generation + 1)), ..credential("a") };
    let active = world.store.put_credential(EVERY, &new, 3).await.unwrap().stored;
    assert_eq!((active.credential.status, active.credential.status_reason), (CredentialStatus::Active, None));
}

async fn notice_of_a_credential_issue_says_whom_it_concerns_and_why(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let recipient = Recipient { addresses, ..Recipient::default() };
    world.store.put_recipient(EVERY, "a", &recipient, None).await.unwrap();
    let task = world.task(json!({"interval": "1h"})).await;
    let newest = async || {
        let newest = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
        world.store.list_deliveries(EVERY, &newest).await.unwrap().remove(0)
    };
    let told = async |notice: &Delivery| world.store.referred(notice).await.unwrap().credential;
    let lack = |kind| CredentialIssue { credential: Reference::parse("google/work").unwrap(), kind, sent_at: None };
    let paused = world.store.pause_for_credential(task.id, &lack(CredentialIssueKind::Missing)).await;
    assert_eq!(paused.unwrap(), PauseResult::Paused);
    let of_task = newest().await;
    let expected = CredentialContext {
        reference: "google/work".into(),
        service: "google".into(),
        account: "work".into(),
        issue: CredentialIssueKind::Missing,
        task: Some("Morning mail".into()),
        paused: true,
        reason: None,
    };
    assert_eq!(told(&of_task).await, Some(expected.clone()));
    world.store.change_task(EVERY, task.id, &TaskChange::Resume).await.unwrap();
    assert_eq!(told(&of_task).await, Some(CredentialContext { paused: false, ..expected.clone() }));

    let read = put(world).await;
    let lease = claim(&world.store, world, &read).await.unwrap();
    world.store.mark_needs_consent(read.credential.id, lease, "invalid_grant: revoked").await.unwrap();
    let paused = world.store.pause_for_credential(task.id, &lack(CredentialIssueKind::NeedsConsent)).await;
    assert_eq!(paused.unwrap(), PauseResult::Paused);
    let of_all = newest().await;
    let reason = Some("invalid_grant: revoked".to_owned());
    let expected =
        CredentialContext { issue: CredentialIssueKind::NeedsConsent, task: None, paused: false, reason, ..expected };
    assert_eq!(told(&of_all).await, Some(expected));
    world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
    assert_eq!(told(&of_all).await, None, "what was stored is told");
}

async fn only_what_is_under_another_key_is_rewrapped(world: &StoreHarness) {
    for (account, key_id) in [("one", "old"), ("two", "new"), ("three", "older")] {
        let mut new = CredentialRowDraft { account_name: account.into(), ..credential("a") };
        new.document.as_mut().unwrap().key_id = key_id.into();
        world.store.put_credential(EVERY, &new, 0).await.unwrap();
    }
    let under_others = async |after: Option<Uuid>, limit: i64| {
        let found = world.store.credentials_not_under("new", after, limit).await.unwrap();
        found.into_iter().map(|stored| (stored.credential.account_name.clone(), stored)).collect::<Vec<_>>()
    };
    let found = under_others(None, 9).await;
    assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["one", "three"]);
    let one = found[0].1.clone();
    let behind = under_others(Some(one.credential.id), 1).await;
    assert_eq!(behind[0].0, "three");
    assert!(world.store.rewrap_credential(&one, "v1:new:one", "new").await.unwrap());
    let expected = StoredCredential { sealed: "v1:new:one".into(), key_id: "new".into(), ..one.clone() };
    let stored = world.store.get_credential(EVERY, "a", "google", "one").await.unwrap();
    assert_eq!(stored, expected);
    // one that was written since it was read
    assert!(!world.store.rewrap_credential(&one, "v1:new:other", "new").await.unwrap());
    assert_eq!(world.store.get_credential(EVERY, "a", "google", "one").await.unwrap(), expected);
    assert_eq!(under_others(None, 9).await.len(), 1);
    let keys = world.store.keys_of_credentials().await.unwrap();
    assert_eq!(keys, [("new".to_owned(), 2), ("older".to_owned(), 1)]);
}

async fn recipients_with_secrets_are_found_and_written_over_what_was_read(world: &StoreHarness) {
    for (tenant, webhook) in [("ann", Some("v1:old:1:2")), ("bob", None), ("cat", Some("v1:new:1:2"))] {
        let webhook = webhook
            .map(|sealed| WebhookAddress { url: "https://hooks.example.org".into(), sealed_secret: sealed.into() });
        let recipient = Recipient {
            timezone: chrono_tz::Tz::UTC,
            locale: "en".into(),
            addresses: Addresses { webhook, ..Addresses::default() },
            fallback: vec![],
            quiet: Default::default(),
            verified: Default::default(),
        };
        world.store.put_recipient(EVERY, tenant, &recipient, None).await.unwrap();
    }
    let found = world.store.sealed_recipients("", 9).await.unwrap();
    let shown: Vec<_> = found.iter().map(|row| (row.id.as_str(), row.version, row.body.is_some())).collect();
    assert_eq!(shown, [("ann", 1, true), ("bob", 1, false), ("cat", 1, true)]);
    let page = world.store.sealed_recipients("ann", 1).await.unwrap();
    assert_eq!(page, found[1..2]);

    let ann = &found[0];
    let mut body = ann.body.clone().unwrap();
    body["addresses"]["webhook"]["sealed_secret"] = json!("v1:new:3:4");
    let read = world.store.get_recipient(EVERY, "ann").await.unwrap();
    assert!(world.store.rewrap_recipient(ann, &body).await.unwrap());
    let stored = world.store.get_recipient(EVERY, "ann").await.unwrap();
    assert_eq!(stored.version, 2);
    assert_eq!(stored.recipient.addresses.webhook.unwrap().sealed_secret, "v1:new:3:4");
    // who read it before does not put the old one back, neither here nor there
    assert!(!world.store.rewrap_recipient(ann, ann.body.as_ref().unwrap()).await.unwrap());
    let old: Recipient = serde_json::from_value(ann.body.clone().unwrap()).unwrap();
    let refused = world.store.put_recipient(EVERY, "ann", &old, Some(&read)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

async fn tasks_with_secrets_are_found_and_written_over_what_was_read(world: &StoreHarness) {
    let config = json!({ "action": { "instruction": "x", "config": { "sealed_secret": "v1:old:1:2" } } });
    let task = world.task_with("a", json!({"interval": "1h"}), config).await;
    let plain = world.task(json!({"interval": "1h"})).await;
    let found = world.store.sealed_tasks(None, 9).await.unwrap();
    let shown: Vec<_> = found.iter().map(|row| (row.id, row.tenant_id.as_str(), row.body.is_some())).collect();
    assert_eq!(shown, [(task.id, "a", true), (plain.id, "a", false)]);
    let behind = world.store.sealed_tasks(Some(task.id), 9).await.unwrap();
    assert_eq!(
        behind,
        [SealedRow { id: plain.id, tenant_id: "a".into(), version: 1, updated_at: plain.updated_at, body: None }]
    );

    let mut spec = found[0].body.clone().unwrap();
    spec["action"]["config"]["sealed_secret"] = json!("v1:new:3:4");
    assert!(world.store.rewrap_task(&found[0], &spec).await.unwrap());
    let stored = world.get_task(task.id).await;
    assert_eq!(stored.spec.action.config["sealed_secret"], "v1:new:3:4");
    assert_eq!((stored.version, stored.epoch, stored.next_fire_at), (2, task.epoch, task.next_fire_at));
    assert!(!world.store.rewrap_task(&found[0], &spec).await.unwrap());
    let edit = TaskChange::Edit { version: 1, name: "stale".into(), spec: Box::new(task.spec) };
    let refused = world.store.change_task(EVERY, task.id, &edit).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

async fn change_of_the_master_key_is_on_record_and_no_tenants_business(world: &StoreHarness) {
    world.store.note_rotation("token:t", json!({ "key": "new" })).await.unwrap();
    let filter = AuditFilter { action: Some("master_key.rotated".into()), limit: 9, ..AuditFilter::default() };
    let acts = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    let acts: Vec<_> = acts.iter().map(|act| (act.actor.as_str(), &act.body)).collect();
    assert_eq!(acts, [("token:t", &json!({ "key": "new" }))]);
    assert_eq!(world.store.audit_page(&only("a"), &filter).await.unwrap().rows, []);
}

/// A vault with these keys, the first of which encrypts.
pub fn vault(ids: &[&str]) -> Vault {
    let key = |id: &&str| {
        let byte = id.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let mut text = format!("{id}:");
        base64::Engine::encode_string(&base64::engine::general_purpose::STANDARD, [byte; 32], &mut text);
        KeySource::value(text)
    };
    let settings = vault::Settings { master_keys: ids.iter().map(key).collect(), accept_lost_keys: false };
    Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
}

async fn document_opens_in_its_row_and_generation_only(world: &StoreHarness) {
    let vault = vault(&["one"]);
    let secret = Secret::new("{\"token\":\"canary\"}");
    let seal = |tenant: &str, reference: &str, generation: i64| {
        let reference = Reference::parse(reference).unwrap();
        vault.seal_document(tenant, &reference, generation, &secret, None).unwrap()
    };
    let first = START.timestamp_millis();
    let rows = [
        ("a", "google/work", first),
        ("b", "google/work", first),
        ("a", "google/home", first),
        ("a", "shop/work", first),
    ];
    for (tenant, name, generation) in rows {
        let Reference { service, account } = Reference::parse(name).unwrap();
        let document = Some(seal(tenant, name, generation));
        let new = CredentialRowDraft { service, account_name: account, document, ..credential(tenant) };
        world.store.put_credential(EVERY, &new, 0).await.unwrap();
    }
    let read = async |tenant: &str, service: &str, account: &str| {
        world.store.get_credential(EVERY, tenant, service, account).await.unwrap()
    };
    let good = read("a", "google", "work").await;
    assert_eq!(vault.open_document(&good).unwrap().expose(), secret.expose());
    let stored = good.sealed.clone();

    // moved into the row of another tenant, account or service
    world.plant(&format!("update credentials set sealed = '{stored}'")).await;
    for (tenant, service, account) in [("b", "google", "work"), ("a", "google", "home"), ("a", "shop", "work")] {
        let moved = vault.open_document(&read(tenant, service, account).await);
        assert_eq!(moved.err(), Some(vault::VaultError::Refused), "{tenant} {service} {account}");
    }
    // put back after it was replaced: the row is of another generation
    let new = CredentialRowDraft { document: Some(seal("a", "google/work", first + 1)), ..credential("a") };
    world.store.put_credential(EVERY, &new, 1).await.unwrap();
    assert!(vault.open_document(&read("a", "google", "work").await).is_ok());
    let back = format!(
        "update credentials set sealed = '{stored}' where tenant_id = 'a' and service = 'google' and account = 'work'"
    );
    world.plant(&back).await;
    let replaced = vault.open_document(&read("a", "google", "work").await);
    assert_eq!(replaced.err(), Some(vault::VaultError::Refused));
    // put back after it was deleted and made anew
    world.store.delete_credential(EVERY, "a", "google", "work", "token:t").await.unwrap();
    world.pass(1);
    let generation = next_generation(None, world.now());
    let new = CredentialRowDraft { document: Some(seal("a", "google/work", generation)), ..credential("a") };
    world.store.put_credential(EVERY, &new, 0).await.unwrap();
    world.plant(&back).await;
    let made_anew = vault.open_document(&read("a", "google", "work").await);
    assert_eq!(made_anew.err(), Some(vault::VaultError::Refused));
    // put back with the generation that it was sealed for: it is the row that it was
    world.plant(&format!("update credentials set generation = {first} where tenant_id = 'a' and service = 'google' and account = 'work'")).await;
    let whole = read("a", "google", "work").await;
    assert_eq!(vault.open_document(&whole).unwrap().expose(), secret.expose());
    // every flipped bit
    for bit in 0..whole.sealed.len() * 8 {
        let mut bytes = whole.sealed.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(sealed) = String::from_utf8(bytes) else { continue };
        let flipped = StoredCredential { sealed, ..whole.clone() };
        assert!(vault.open_document(&flipped).is_err(), "bit {bit}");
    }
    let shown = format!("{good:?} {:?}", seal("a", "google/work", 1));
    assert!(!shown.contains("v1:") && shown.contains("[redacted]"), "{shown}");
}
