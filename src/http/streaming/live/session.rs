//! One session: what it has told, and how it finds what is new.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use serde::Serialize;
use tokio::sync::watch;
use uuid::Uuid;

use crate::base::clock;
use crate::base::id::Tenant;
use crate::base::secret::Secret;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::request::AuthenticatedCaller;
use crate::http::streaming::limiter::StreamPermit;
use crate::ports::channel::live;
use crate::store::{StoreError, Topic};

/// How often messages are looked for while nothing is heard of one: those of other instances give no wake-up.
const LOOK: Duration = Duration::from_millis(500);
/// Rows may show up in another order than that of their times, by no more than this: their transactions and clocks.
const OVERLAP: TimeDelta = TimeDelta::seconds(5);
/// Rows that one look sees; they are small.
const ROWS: i64 = 10_000;

/// The name of the event by which a session begins.
pub const SESSION: &str = "session";

/// The beginning of a session.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SessionOpening<'a> {
    /// `session`.
    event: &'static str,
    /// The tenant whose messages are told.
    tenant_id: &'a str,
}

/// A message to be told.
pub struct SessionMessage {
    pub id: Uuid,
    /// As JSON. It may hold a link that decides, so it is no text for a log.
    pub body: Secret,
}

/// One open session.
pub struct Session {
    state: HttpState,
    caller: AuthenticatedCaller,
    tenant: Tenant,
    permit: Option<StreamPermit>,
    /// May have messages with a link that decides; others leave them to other sessions, or the next channel.
    decides: bool,
    /// Where rows are looked for that were taken already.
    since: DateTime<Utc>,
    /// Deliveries that were told, or are not to be, as far as a look may see them again.
    known: HashMap<Uuid, DateTime<Utc>>,
    /// Found and not yet told, oldest first.
    found: VecDeque<Uuid>,
    laid_out: watch::Receiver<()>,
    look: BoxFuture<'static, ()>,
}

impl Session {
    /// Begins now, or behind the message `seen`, if that is still kept.
    pub(super) async fn open(
        state: HttpState,
        caller: AuthenticatedCaller,
        tenant: Tenant,
        permit: StreamPermit,
        seen: Option<Uuid>,
    ) -> Result<Session, StoreError> {
        // listen first, read after
        let laid_out = state.store.listen(Topic::Live);
        let seen = match seen {
            Some(id) => state.store.live_message(&tenant, id).await?,
            None => None,
        };
        let since = seen.map_or_else(|| state.store.clock().now() - OVERLAP, |seen| seen.created_at);
        let before = state.store.live_messages(&tenant, since, ROWS).await?;
        let old = before.iter().filter(|row| match seen {
            Some(seen) => (row.created_at, row.id) <= (seen.created_at, seen.id),
            None => row.taken,
        });
        let known = old.map(|row| (row.id, row.created_at)).collect();
        let look = ready(()).boxed();
        let decides = caller.may(Permission::ApprovalsDecide).is_ok();
        Ok(Session {
            state,
            caller,
            tenant,
            permit: Some(permit),
            decides,
            since,
            known,
            found: VecDeque::new(),
            laid_out,
            look,
        })
    }

    /// The room of the session, for a caller that keeps it longer or gives it back sooner than the session.
    pub fn take_permit(&mut self) -> Option<StreamPermit> {
        self.permit.take()
    }

    /// The first message of a session, as JSON.
    pub fn opened(&self) -> String {
        // texts can always be written as JSON
        serde_json::to_string(&SessionOpening { event: SESSION, tenant_id: self.tenant.as_str() }).unwrap_or_default()
    }

    /// The next message; `None` when the token is good no more, or the service is being stopped. May be dropped while
    /// it waits.
    pub async fn next(&mut self) -> Option<SessionMessage> {
        loop {
            while let Some(id) = self.found.front().copied() {
                match self.take(id).await {
                    Ok(message) => {
                        self.found.pop_front();
                        if let Some(message) = message {
                            return Some(message);
                        }
                    }
                    // it stays where it is, and is taken at the next look
                    Err(error) => {
                        tracing::warn!(%error, "can't take a message for a session");
                        break;
                    }
                }
            }
            let stop = self.state.stop.clone();
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                _ = self.laid_out.changed() => {}
                () = &mut self.look => {}
            }
            self.look = clock::pause(LOOK).boxed();
            match self.caller.is_still_known(&self.state).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(%error, "can't ask for the token of a session");
                    continue;
                }
            }
            // a database that is away is asked again
            if let Err(error) = self.find().await {
                tracing::warn!(%error, "can't look for messages of a session");
            }
        }
    }

    async fn find(&mut self) -> Result<(), StoreError> {
        let rows = self.state.store.live_messages(&self.tenant, self.since, ROWS).await?;
        for row in &rows {
            if self.known.insert(row.id, row.created_at).is_none() && (self.decides || !row.has_approval_link) {
                self.found.push_back(row.id);
            }
        }
        if let Some(newest) = rows.iter().map(|row| row.created_at).max() {
            self.since = self.since.max(newest - OVERLAP);
        }
        // what a look can't see again need not be known: neither by its time nor as one that nobody has taken
        let (since, seen): (_, HashSet<Uuid>) = (self.since, rows.iter().map(|row| row.id).collect());
        self.known.retain(|id, created_at| *created_at >= since || seen.contains(id));
        Ok(())
    }

    /// `None` for a message that was withdrawn, or that nobody can read.
    async fn take(&mut self, id: Uuid) -> Result<Option<SessionMessage>, StoreError> {
        let Some(sealed) = self.state.store.take_live_message(&self.tenant, id).await? else { return Ok(None) };
        match live::open(&self.state.vault, &self.tenant, id, &sealed) {
            Ok(body) => Ok(Some(SessionMessage { id, body })),
            Err(error) => {
                tracing::error!(message_id = %id, %error, "a message of a session can't be opened");
                Ok(None)
            }
        }
    }
}
