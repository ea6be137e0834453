//! A store on SQLite in a folder of its own, for tests that hold what others wait for.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use chrono::{DateTime, Utc};
use futures::FutureExt;
use serde_json::{Value, json};

use crate::base::clock::Clock;
use crate::base::id::{Scope, Tenant, new_id};
use crate::domain::task::{Draft, Task};
use crate::store::db::Db;
use crate::store::db::tenant_readers::TenantReaders;
use crate::store::db::writer::SqliteWriter;
use crate::store::{Settings, Store};

/// The instant at which the clock stands at first: 2026-03-01T08:00:00Z.
pub(in crate::store) const START: DateTime<Utc> = DateTime::from_timestamp_millis(1_772_352_000_000).unwrap();

/// A store, and the folder that goes with it.
pub(in crate::store) struct Scratch {
    pub store: Store,
    pub clock: Clock,
    dir: PathBuf,
}

impl Scratch {
    /// A store in a directory of its own, with a clock that stands still.
    pub async fn open() -> Scratch {
        let dir = std::env::temp_dir().join(format!("reveille-store-{:016x}", fastrand::u64(..)));
        let clock = Clock::manual(START);
        let store = Store::open(&Settings::default(), &dir, clock.clone(), |_| {}).await.expect("a store on SQLite");
        Scratch { store, clock, dir }
    }

    /// Its connections for reads of tenants.
    pub fn tenant_readers(&self) -> &TenantReaders {
        let Db::Sqlite { tenant_readers, .. } = &self.store.db else { unreachable!("it is SQLite") };
        tenant_readers
    }

    /// Its connection that writes.
    pub fn writer(&self) -> &SqliteWriter {
        let Db::Sqlite { writer, .. } = &self.store.db else { unreachable!("it is SQLite") };
        writer
    }

    /// A task of a tenant, stored.
    pub async fn task(&self, tenant: &str, trigger: Value) -> Task {
        let mut spec = json!({
            "trigger": { "type": "schedule" }, "executor": "orchestrator", "action": { "instruction": "say hello" },
            "max_runs": null, "timeout_seconds": 600, "retry": {}, "pause_after_failures": null, "metadata": {},
        });
        spec["trigger"].as_object_mut().expect("an object").extend(trigger.as_object().expect("an object").clone());
        let spec = serde_json::from_value(spec).expect("a spec");
        let draft = Draft { tenant: Tenant::new(tenant).expect("a tenant"), key: None, name: "Mail".into(), spec };
        let (task, next) = Task::new(new_id(self.clock.now()), draft, self.clock.now()).expect("a valid schedule");
        self.store.create_task(&task, next.map(|next| next.nominal), None).await.expect("stored");
        task
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(in crate::store) fn only(tenant: &str) -> Scope {
    Scope::Only(Tenant::new(tenant).expect("a tenant"))
}

/// A call that has asked, and has no answer.
pub(in crate::store) fn asked<'a, T>(call: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    let mut call: Pin<Box<dyn Future<Output = T> + 'a>> = Box::pin(call);
    assert!((&mut call).now_or_never().is_none(), "it waits");
    call
}
