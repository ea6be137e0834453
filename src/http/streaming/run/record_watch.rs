//! How far the records of followed runs have come: looked up for all streams of this instance together, so that one
//! more stream costs the database nothing while its run stands still.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use uuid::Uuid;

use crate::executor::hub::Hub;
use crate::store::{RunProgress, Store};

/// How long a look is good for streams that were not told of anything.
const GOOD_FOR: Duration = Duration::from_millis(250);

/// The last look, held while the next one is made: whoever comes meanwhile shares it.
#[derive(Debug, Default)]
pub(in crate::http) struct RecordWatch(Mutex<RecordLook>);

#[derive(Debug, Default)]
struct RecordLook {
    made_at: Option<Instant>,
    found: HashMap<Uuid, RunProgress>,
}

impl RecordWatch {
    /// How far the record of a followed run has come, by a look that is a moment old at most. `None`: that is not
    /// known, because the run is gone, is followed since after the look, or could not be looked up.
    pub(in crate::http) async fn progress_of(&self, store: &Store, hub: &Hub, run: Uuid) -> Option<RunProgress> {
        let mut last = self.0.lock().await;
        if last.made_at.is_none_or(|made_at| made_at.elapsed() >= GOOD_FOR) {
            let found = store.run_progress(&hub.watched_runs()).await;
            last.found = found.unwrap_or_else(|error| {
                // streams read for themselves what they want to know, and say why they can't
                tracing::debug!(%error, "can't look up how far followed runs have come");
                HashMap::new()
            });
            last.made_at = Some(Instant::now());
        }
        last.found.get(&run).copied()
    }
}
