//! The tool announcer: tells the owners of tasks of a tool that their MCP server lists with a definition which nobody
//! has accepted. One message for each tenant and change, whichever instance tells it and however many tasks name the
//! tool, or a configured agent that names it.
//!
//! How far a change was told is kept by this process alone. Another one begins at the first tenant, and the keys of the
//! messages let none be made twice.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::agent::configured::AgentDefinition;
use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, dedupe, notices};
use crate::domain::task::Output;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::store::{Store, StoreError, ToolOwner, UntoldTool};

/// Changes that one tick looks at.
const CHANGES: i64 = 20;
/// Tenants that one tick tells of them.
const TENANTS: usize = 100;

/// Tells owners of tools that wait to be accepted.
pub struct ToolAnnouncer {
    store: Store,
    /// Agents by which tasks use tools that they don't name.
    agents: Vec<AgentDefinition>,
    /// How far each change was told, by the key of its messages.
    told: Mutex<HashMap<String, ToldSoFar>>,
}

/// The place of the name whose tasks are looked for, and the last tenant of these that was told.
type ToldSoFar = (usize, Option<String>);

impl ToolAnnouncer {
    /// The service over this store.
    pub fn new(store: Store) -> ToolAnnouncer {
        ToolAnnouncer { store, agents: Vec::new(), told: Mutex::default() }
    }

    /// With the agents that are configured.
    pub fn with_agents(self, agents: Vec<AgentDefinition>) -> ToolAnnouncer {
        ToolAnnouncer { agents, ..self }
    }

    /// Tells at most `room` tenants of a change, those behind the last that was told; answers how many, and whether all
    /// were. A tenant that has a task for the tool and one for an agent has one message, by its key.
    async fn announce(&self, change: &UntoldTool, room: usize) -> Result<(usize, bool), StoreError> {
        let tool = format!("{}.{}", change.server, change.tool);
        let key = dedupe::tool_changed(&tool, &change.hash);
        let names = [vec![tool.as_str()], AgentDefinition::holders(&self.agents, &tool)].concat();
        for told in 0..room {
            let so_far = self.told.lock().expect("told lock").get(&key).cloned().unwrap_or_default();
            let Some((owner, place)) = self.next_owner(&names, so_far).await? else {
                self.store.mark_tool_told(&change.server, &change.tool, &change.hash).await?;
                return Ok((told, true));
            };
            self.tell(&owner, &tool, (change.is_new, &key)).await?;
            self.told.lock().expect("told lock").insert(key.clone(), (place, Some(owner.tenant)));
        }
        Ok((room, false))
    }

    /// The next owner of a task that has one of these names among its tools, with the place of the name.
    async fn next_owner(
        &self,
        names: &[&str],
        (mut place, mut after): ToldSoFar,
    ) -> Result<Option<(ToolOwner, usize)>, StoreError> {
        while let Some(name) = names.get(place) {
            if let Some(owner) = self.store.next_owner_of_tool(name, after.as_deref()).await? {
                return Ok(Some((owner, place)));
            }
            (place, after) = (place + 1, None);
        }
        Ok(None)
    }

    /// Posts the message to one owner, where there is a way to.
    async fn tell(&self, owner: &ToolOwner, tool: &str, (is_new, key): (bool, &str)) -> Result<(), StoreError> {
        let recipient = self.store.recipient_to_tell(&owner.tenant).await?;
        let language = Recipient::language_of(recipient.as_ref());
        let words = notices::tool_changed(language, &owner.task_name, tool, is_new);
        let subject = SubjectRef::Notice { notice: NoticeKind::ToolChanged, task_id: owner.task_id };
        let (usual, about) = (Output::default(), (subject, key.to_owned()));
        let Some(notice) = NewDelivery::notice_of(&owner.tenant, &usual, recipient.as_ref(), about, words) else {
            return Ok(());
        };
        match self.store.post_delivery(&notice).await {
            Err(error @ (StoreError::Unavailable(_) | StoreError::TimedOut(_))) => Err(error),
            // one that can't be told, such as one that has stored all that it may, keeps no other from being told
            Err(error) => {
                tracing::warn!(tenant = owner.tenant, tool, %error, "the owner of a task is not told of a tool");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Forgets how far the changes were told that are told, accepted or gone.
    fn forget_others(&self, untold: &[UntoldTool]) {
        let key_of =
            |change: &UntoldTool| dedupe::tool_changed(&format!("{}.{}", change.server, change.tool), &change.hash);
        let keys: Vec<String> = untold.iter().map(key_of).collect();
        self.told.lock().expect("told lock").retain(|key, _| keys.contains(key));
    }
}

impl ServiceLoop for ToolAnnouncer {
    const NAME: &'static str = "tool_announcer";
    const POLL_INTERVAL: Duration = Duration::from_secs(30);

    async fn tick(&self) -> Result<NextTick, TickError> {
        let untold = self.store.untold_tool_changes(CHANGES).await?;
        self.forget_others(&untold);
        let (mut room, mut has_failed) = (TENANTS, false);
        for change in &untold {
            let (told, is_done) = match self.announce(change, room).await {
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) => {
                    // others are told of theirs all the same
                    tracing::warn!(tool = change.tool, server = change.server, %error, "no more are told of a tool");
                    has_failed = true;
                    continue;
                }
                Ok(announced) => announced,
            };
            room -= told;
            if !is_done {
                return Ok(NextTick::Now);
            }
        }
        // one that failed is looked at again, and so not at once
        Ok(if untold.len() as i64 == CHANGES && !has_failed { NextTick::Now } else { NextTick::OnWake })
    }
}
