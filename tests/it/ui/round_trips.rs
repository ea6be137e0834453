//! How often a page asks the database: as often for many rows as for few.

use sqlx::Executor;

use super::visitor::{ServedDashboard, Visitor};
use crate::api::service::Api;
use crate::approvals::harness::{ask, note};
use crate::support::gate::Gate;
use crate::support::postgres::Database;

/// Rows of each kind at the second look.
const MANY: usize = 20;
/// Round trips by which two looks may differ: a statement is prepared on each connection once.
const PREPARED: usize = 40;

#[tokio::test]
async fn page_asks_the_database_as_often_for_many_rows_as_for_few() {
    let (api, gate, database) = Api::behind_gate().await;
    let site = ServedDashboard::of(api).await;
    let ann = site.of_tenant("ann", &["*"]).await;
    let asked = ask(&site.api, "ann", vec![note()]).await;
    use_models(&database).await;
    let pages = [
        "/ui".to_owned(),
        "/ui/tasks".to_owned(),
        "/ui/runs".to_owned(),
        "/ui/approvals".to_owned(),
        "/ui/inbox".to_owned(),
        "/ui/inbox/agents".to_owned(),
        "/ui/budgets".to_owned(),
        "/ui/usage?by=task".to_owned(),
        format!("/ui/tasks/{}", asked.task),
        format!("/ui/runs/{}", asked.run),
    ];
    let mut of_few = Vec::new();
    for page in &pages {
        round_trips(&ann, &gate, page).await;
        of_few.push(round_trips(&ann, &gate, page).await);
    }
    for _ in 1..MANY {
        ask(&site.api, "ann", vec![note()]).await;
    }
    use_models(&database).await;
    ann.get("/ui/usage?by=task").await.has("Morning");
    for (page, few) in pages.iter().zip(of_few) {
        let many = round_trips(&ann, &gate, page).await;
        assert!(many <= few + PREPARED, "{page}: {few} round trips for a row of each kind, {many} for {MANY}");
    }
}

async fn round_trips(visitor: &Visitor, gate: &Gate, page: &str) -> usize {
    let before = gate.requests();
    let shown = visitor.get(page).await;
    assert_eq!(shown.status, 200, "{page}: {}", shown.text);
    gate.requests() - before
}

/// Each task has used a model.
async fn use_models(database: &Database) {
    let mut connection = database.connect().await;
    connection.execute("select set_config('reveille.tenant', '*', false)").await.expect("every tenant");
    let used =
        "insert into usage_days (tenant_id, day, task_id, kind, name, calls, failures, duration_ms, input_tokens,
                                        output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens,
                                        cost_micros, result_chars)
                select tenant_id, date '2026-11-21', id, 'model', 'main', 1, 0, 1, 1, 1, 0, 0, 0, 1, 0 from tasks
                on conflict do nothing";
    connection.execute(used).await.expect("usage");
}
