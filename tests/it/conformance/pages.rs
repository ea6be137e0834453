//! Pages of lists: they end by bytes, go on behind their last row, and leave none out.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::store::{CredentialFilter, Grant, PAGE_BYTES, RowPage, StoredToken};
use serde_json::json;
use uuid::Uuid;

use super::credentials::credential;
use super::world::StoreHarness;

on_both!(
    list_of_tokens_ends_its_pages_at_a_bound_and_leaves_none_out,
    list_of_grants_ends_its_pages_at_a_bound_and_leaves_none_out,
    list_of_credentials_ends_its_pages_at_a_bound_and_reads_no_documents,
);

const EVERY: &Scope = &Scope::Every;
const ROWS: usize = 9;

/// A text of which three and a bit fit on a page.
fn long() -> String {
    "x".repeat(PAGE_BYTES as usize * 3 / 10)
}

/// All rows of a list, page by page, newest first; each page but the last has four.
async fn paged<T>(list: impl AsyncFn(Option<Uuid>) -> RowPage<T>, id: impl Fn(&T) -> Uuid) -> Vec<Uuid> {
    let (mut seen, mut lengths): (Vec<Uuid>, Vec<usize>) = (Vec::new(), Vec::new());
    loop {
        let page = list(seen.last().copied()).await;
        lengths.push(page.rows.len());
        seen.extend(page.rows.iter().map(&id));
        if !page.is_cut {
            assert_eq!(lengths, [4, 4, 1]);
            return seen;
        }
        assert!(lengths.len() < ROWS, "{lengths:?}");
    }
}

fn newest_first(mut made: Vec<Uuid>) -> Vec<Uuid> {
    made.reverse();
    made
}

async fn list_of_tokens_ends_its_pages_at_a_bound_and_leaves_none_out(world: &StoreHarness) {
    let mut made = Vec::new();
    for number in 0..ROWS {
        let token = StoredToken {
            id: new_id(world.now()),
            tenant_id: Some("a".into()),
            name: long(),
            hash: vec![number as u8; 32],
            scopes: vec!["*".into()],
            created_at: world.now(),
            expires_at: None,
            revoked_at: None,
            root: None,
        };
        world.store.create_token(&token, None).await.unwrap();
        made.push(token.id);
    }
    let list = async |before| world.store.list_tokens(EVERY, None, before, 200).await.unwrap();
    assert_eq!(paged(list, |token| token.id).await, newest_first(made));
}

async fn list_of_grants_ends_its_pages_at_a_bound_and_leaves_none_out(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let mut made = Vec::new();
    for _ in 0..ROWS {
        let grant = Grant {
            id: new_id(world.now()),
            tenant_id: task.tenant_id.clone(),
            task_id: task.id,
            tool: "mail.send".into(),
            epoch: task.epoch,
            args: json!({ "to": long() }),
            definition: "d".repeat(64),
            uses_left: None,
            created_at: world.now(),
            created_by: "recipient:a".into(),
            expires_at: world.now() + TimeDelta::days(1),
            revoked_at: None,
            revoked_by: None,
        };
        world.store.create_grant(EVERY, &grant).await.unwrap();
        made.push(grant.id);
    }
    let list = async |before| world.store.list_grants(EVERY, None, before, 200).await.unwrap();
    assert_eq!(paged(list, |grant| grant.id).await, newest_first(made));
}

async fn list_of_credentials_ends_its_pages_at_a_bound_and_reads_no_documents(world: &StoreHarness) {
    let mut made = Vec::new();
    for number in 0..ROWS {
        let new = reveille::store::CredentialRowDraft { account_name: format!("n{number}"), ..credential("a") };
        made.push(world.store.put_credential(EVERY, &new, 0).await.unwrap().stored.credential.id);
    }
    let list = async |before| {
        let filter = CredentialFilter { before, limit: 200, ..CredentialFilter::default() };
        world.store.list_credentials(EVERY, &filter).await.unwrap()
    };
    // a document is not read, so it makes no page shorter
    world.plant(&format!("update credentials set sealed = '{}'", long())).await;
    let page = list(None).await;
    assert_eq!((page.rows.len(), page.is_cut), (ROWS, false));
    world.plant(&format!("update credentials set status_reason = '{}'", long())).await;
    assert_eq!(paged(list, |credential| credential.id).await, newest_first(made));
}
