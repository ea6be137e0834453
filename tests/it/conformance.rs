//! Behaviour of the store, proved once for both databases: each case is one function over a store and a clock that
//! stands still, and runs on SQLite and on Postgres. After each case the database must be in order:
//! `world::INVARIANTS`.

/// Makes of each case two tests, one on each database.
macro_rules! on_both {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[tokio::test]
            async fn sqlite() {
                let world = $crate::conformance::world::StoreHarness::sqlite().await;
                super::$case(&world).await;
                world.leave().await;
            }

            #[tokio::test]
            async fn postgres() {
                let world = $crate::conformance::world::StoreHarness::postgres().await;
                super::$case(&world).await;
                world.leave().await;
            }
        }
    )+};
}

pub(crate) use on_both;

mod alerts;
mod approvals;
mod asked;
mod audit;
mod budgets;
mod calls;
mod changes;
mod completions;
mod conditions;
mod connect;
mod conversations;
mod coverage;
mod creating;
pub mod credentials;
mod data_files;
mod deliveries;
mod disabling;
mod ends;
mod event_starts;
mod events;
mod extractions;
mod facts;
mod fires;
mod grants;
mod halts;
mod idempotency;
mod inputs;
mod instances;
mod known_tasks;
mod lease;
mod limits;
mod live;
mod matching;
mod message_starts;
mod outbox;
mod overrides;
mod pages;
mod pending_work;
mod plans;
mod quotas;
mod races;
mod recalls;
mod recipients;
mod recorded;
mod request_starts;
mod rescue;
mod retention;
mod run_prefixes;
mod runs;
mod runs_by_state;
mod server_questions;
mod skip_tallies;
mod slots;
mod stalled_connections;
mod starting;
mod stored_bytes;
mod suspended;
mod task_state;
mod tasks;
mod tenants;
mod texts;
mod tokens;
mod tool_pins;
mod transcript;
mod turns;
mod ui_sessions;
mod unreadable;
mod unreadable_instants;
mod unreadable_listed;
mod upcoming;
mod usage;
mod vectors;
mod voters;
mod waiting;
pub mod world;
mod zones;
