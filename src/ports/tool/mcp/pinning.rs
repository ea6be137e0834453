//! The lists of one server, judged by the definitions that the operator has accepted: what is new or changed waits.

pub mod served;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::clock::pause;
use crate::base::compute::{ADMIN, ComputePanic};
use crate::domain::approval::{PinVerdict, SeenDefinition};
use crate::ports::tool::mcp::listed_tool::ListedTool;
use crate::ports::tool::mcp::listing::{SetAsideTool, ToolListing};
use crate::ports::tool::mcp::server::McpServer;
use crate::ports::tool::pins::{PinsAway, ToolPins};

/// After a list that could not be judged.
pub const JUDGE_AGAIN: Duration = Duration::from_secs(10);
/// How often acceptances on other instances are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Why a tool whose definition can't be kept is set aside.
const NO_ROOM: &str = "too many definitions of this server are kept";

/// Judges the lists of one server.
pub struct Pinning {
    /// `None`: every definition is accepted.
    pins: Option<Arc<dyn ToolPins>>,
    /// Something was accepted on this instance.
    accepted: Arc<Notify>,
    /// The version of the pins at the last judgement, or as it was looked at since.
    version: Option<i64>,
    /// The tools of the last list, each with its definition, so that none is hashed twice.
    known: Vec<(ListedTool, SeenDefinition)>,
    /// The hashes of those that wait, as they were logged.
    waiting: BTreeSet<String>,
    /// Whether it was logged that a list could not be judged.
    away: bool,
}

/// A list, judged.
pub struct JudgedListing {
    /// Those that are accepted, in the order in which they are listed.
    pub tools: Vec<ListedTool>,
    /// Those that wait until the operator accepts them.
    pub waiting: Vec<ListedTool>,
    /// Those that are there for nobody.
    pub set_aside: Vec<SetAsideTool>,
    /// When to list again.
    pub again: Duration,
}

impl Pinning {
    /// Judges by these pins, again after each acceptance. Without pins everything is accepted.
    pub fn new(pins: Option<Arc<dyn ToolPins>>, accepted: Arc<Notify>) -> Pinning {
        Pinning { pins, accepted, version: None, known: Vec::new(), waiting: BTreeSet::new(), away: false }
    }

    /// The tools of a list that may be offered, and those that wait. `None`: it can't be judged now; the earlier tools
    /// stay, and it is listed again after [`JUDGE_AGAIN`].
    pub async fn judge(&mut self, server: &McpServer, listing: ToolListing) -> Option<JudgedListing> {
        let name = &server.prepared().name;
        let seen = match self.seen(server, &listing.tools).await {
            Ok(seen) => seen,
            Err(panicked) => {
                self.log_away(name, &panicked);
                return None;
            }
        };
        // before anybody is asked: a call of a changed tool is refused even while the pins are away
        server.served().put(&seen, &listing.unfit());
        let verdicts = match self.verdicts(name, &seen).await {
            Ok(verdicts) => verdicts,
            Err(away) => {
                self.log_away(name, &away);
                return None;
            }
        };
        self.away = false;
        self.log_waiting(name, &seen, &verdicts);
        Some(judged(listing, &verdicts))
    }

    /// Returns once something was accepted, here or elsewhere. It may be dropped and asked again at any time.
    pub async fn accepted(&mut self) {
        let Some(pins) = &self.pins else { return pending().await };
        tokio::select! {
            () = self.accepted.notified() => {}
            () = until_moved(&**pins, &mut self.version, LOOK_EVERY) => {}
        }
    }

    /// The definitions of listed tools. Those that are not known yet are hashed on the computing threads: a list may
    /// have many schemas.
    async fn seen(&mut self, server: &McpServer, tools: &[ListedTool]) -> Result<Vec<SeenDefinition>, ComputePanic> {
        self.known.retain(|(known, _)| tools.contains(known));
        let is_fresh = |tool: &&ListedTool| !self.known.iter().any(|(known, _)| known == *tool);
        let fresh: Vec<ListedTool> = tools.iter().filter(is_fresh).cloned().collect();
        if !fresh.is_empty() {
            let hash = move || {
                let with_definition = |tool: ListedTool| {
                    let seen = tool.seen();
                    (tool, seen)
                };
                fresh.into_iter().map(with_definition).collect::<Vec<_>>()
            };
            self.known.extend(server.compute().run(ADMIN, hash).await?);
        }
        let definition = |tool: &ListedTool| {
            let found = self.known.iter().find(|(known, _)| known == tool);
            found.map(|(_, seen)| seen.clone()).expect("each listed tool is known by now")
        };
        Ok(tools.iter().map(definition).collect())
    }

    /// The verdict on each. The version is read first, so that an acceptance in between is noticed afterwards.
    async fn verdicts(&mut self, server: &str, seen: &[SeenDefinition]) -> Result<Vec<PinVerdict>, PinsAway> {
        let Some(pins) = &self.pins else { return Ok(vec![PinVerdict::Accepted; seen.len()]) };
        let version = pins.version().await?;
        let verdicts = pins.judge(server, seen).await?;
        self.version = Some(version);
        Ok(verdicts)
    }

    /// Once, until a list can be judged.
    fn log_away(&mut self, server: &str, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.away, true) {
            tracing::warn!(server, %why, "the tools of an MCP server can't be judged, the earlier ones stay");
        }
    }

    /// Once for each definition, for as long as it waits.
    fn log_waiting(&mut self, server: &str, seen: &[SeenDefinition], verdicts: &[PinVerdict]) {
        let waiting = seen.iter().zip(verdicts).filter(|(_, verdict)| **verdict == PinVerdict::Waiting);
        let waiting: BTreeSet<String> = waiting.map(|(seen, _)| seen.hash.clone()).collect();
        if !waiting.is_subset(&self.waiting) {
            let count = waiting.len();
            tracing::warn!(server, count, "tools of an MCP server are new or changed: see `reveille tool list`");
        }
        self.waiting = waiting;
    }
}

/// Returns once the version of the pins is another one; it is looked at so often.
async fn until_moved(pins: &dyn ToolPins, version: &mut Option<i64>, every: Duration) {
    loop {
        pause(every).await;
        if let Ok(now) = pins.version().await
            && version.replace(now) != Some(now)
        {
            return;
        }
    }
}

/// The list by its verdicts. A definition without one is not accepted.
fn judged(listing: ToolListing, verdicts: &[PinVerdict]) -> JudgedListing {
    let ToolListing { tools, mut set_aside, again } = listing;
    let (mut accepted, mut waiting) = (Vec::new(), Vec::new());
    let verdicts = verdicts.iter().copied().chain(std::iter::repeat(PinVerdict::Unrecorded));
    for (tool, verdict) in tools.into_iter().zip(verdicts) {
        match verdict {
            PinVerdict::Accepted => accepted.push(tool),
            PinVerdict::Waiting => waiting.push(tool),
            PinVerdict::Unrecorded => set_aside.push(SetAsideTool::new(&tool.name, NO_ROOM)),
        }
    }
    JudgedListing { tools: accepted, waiting, set_aside, again }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::pin::pin;
    use std::sync::Mutex;

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;
    use crate::base::metrics::Metrics;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::mcp_metrics::McpMetrics;
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};
    use crate::ports::vault::credentials::Credentials;

    /// As long as nothing is noticed where nothing is to be.
    const MOMENT: Duration = Duration::from_millis(50);

    /// Verdicts by the hashes of definitions; others wait.
    #[derive(Default)]
    struct FakePins {
        verdicts: Mutex<HashMap<String, PinVerdict>>,
        version: Mutex<Option<i64>>,
        asked: Mutex<Vec<Vec<SeenDefinition>>>,
    }

    impl FakePins {
        /// Version 1, until it is away.
        fn new() -> Arc<FakePins> {
            Arc::new(FakePins { version: Mutex::new(Some(1)), ..FakePins::default() })
        }

        fn say(&self, tool: &ListedTool, verdict: PinVerdict) {
            self.verdicts.lock().unwrap().insert(tool.hash(), verdict);
        }

        fn set_version(&self, version: Option<i64>) {
            *self.version.lock().unwrap() = version;
        }
    }

    impl ToolPins for FakePins {
        fn judge<'a>(
            &'a self,
            _: &'a str,
            seen: &'a [SeenDefinition],
        ) -> BoxFuture<'a, Result<Vec<PinVerdict>, PinsAway>> {
            self.asked.lock().unwrap().push(seen.to_vec());
            let said = self.verdicts.lock().unwrap();
            let verdict = |seen: &SeenDefinition| said.get(&seen.hash).copied().unwrap_or(PinVerdict::Waiting);
            let verdicts: Vec<PinVerdict> = seen.iter().map(verdict).collect();
            Box::pin(std::future::ready(Ok(verdicts)))
        }

        fn version(&self) -> BoxFuture<'_, Result<i64, PinsAway>> {
            Box::pin(std::future::ready(self.version.lock().unwrap().ok_or(PinsAway)))
        }
    }

    fn server() -> Arc<McpServer> {
        let egress = Egress::new(&Settings::default()).unwrap();
        let definition: McpServerDefinition =
            serde_json::from_value(json!({ "name": "local", "command": ["server"] })).unwrap();
        let prepared = read(&[definition], &egress).unwrap().remove(0);
        McpServer::new(prepared, Credentials::none(egress), None, McpMetrics::new(&Metrics::new()))
    }

    fn tool(name: &str, description: &str) -> ListedTool {
        let written = json!({ "name": name, "description": description, "inputSchema": { "type": "object" } });
        ListedTool::read(&serde_json::from_value(written).unwrap()).unwrap()
    }

    fn listing(tools: &[ListedTool]) -> ToolListing {
        ToolListing { tools: tools.to_vec(), set_aside: Vec::new(), again: Duration::from_secs(7) }
    }

    fn names(tools: &[ListedTool]) -> Vec<&str> {
        tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    fn pinning(pins: &Arc<FakePins>) -> (Pinning, Arc<Notify>) {
        let accepted = Arc::new(Notify::new());
        (Pinning::new(Some(Arc::clone(pins) as Arc<dyn ToolPins>), Arc::clone(&accepted)), accepted)
    }

    #[tokio::test]
    async fn list_is_split_by_its_verdicts_and_a_tool_without_room_is_set_aside() {
        let (pins, server) = (FakePins::new(), server());
        let tools = [tool("old", "Is."), tool("new", "Is."), tool("more", "Is."), tool("older", "Is.")];
        for (tool, verdict) in [(&tools[0], PinVerdict::Accepted), (&tools[2], PinVerdict::Unrecorded)] {
            pins.say(tool, verdict);
        }
        pins.say(&tools[3], PinVerdict::Accepted);
        let judged = pinning(&pins).0.judge(&server, listing(&tools)).await.unwrap();
        assert_eq!((names(&judged.tools), names(&judged.waiting)), (vec!["old", "older"], vec!["new"]));
        assert_eq!(judged.set_aside, [SetAsideTool::new("more", NO_ROOM)]);
        assert_eq!(judged.again, Duration::from_secs(7));
    }

    #[test]
    fn tool_without_a_verdict_is_not_offered() {
        let judged = judged(listing(&[tool("one", "Is."), tool("two", "Is.")]), &[PinVerdict::Accepted]);
        assert_eq!((names(&judged.tools), judged.waiting.len(), judged.set_aside.len()), (vec!["one"], 0, 1));
    }

    #[tokio::test]
    async fn without_pins_everything_is_accepted_and_nothing_is_waited_for() {
        let mut pinning = Pinning::new(None, Arc::default());
        let (server, echo) = (server(), tool("echo", "Echoes."));
        let judged = pinning.judge(&server, listing(std::slice::from_ref(&echo))).await.unwrap();
        assert_eq!((names(&judged.tools), judged.waiting.len()), (vec!["echo"], 0));
        assert!(server.served().is_other("echo", "another") && !server.served().is_other("echo", &echo.hash()));
        assert!(pinning.accepted().now_or_never().is_none());
    }

    #[tokio::test]
    async fn definition_that_can_t_be_used_is_another_one_and_a_tool_without_room_is_none() {
        let mut pinning = Pinning::new(None, Arc::default());
        let (server, echo) = (server(), tool("echo", "Echoes."));
        assert!(pinning.judge(&server, listing(std::slice::from_ref(&echo))).await.is_some());
        let aside = [SetAsideTool::of_definition("echo", "its schema is none"), SetAsideTool::new("more", "no room")];
        let changed = ToolListing { set_aside: aside.to_vec(), ..listing(&[]) };
        assert!(pinning.judge(&server, changed).await.is_some_and(|judged| judged.set_aside == aside));
        assert!(server.served().is_other("echo", &echo.hash()), "a call of the earlier tool is refused");
        assert!(!server.served().is_other("more", &echo.hash()));
    }

    #[tokio::test]
    async fn list_that_can_t_be_judged_is_none_and_tells_all_the_same_what_is_served() {
        let (pins, server) = (FakePins::new(), server());
        let (before, after) = (tool("echo", "Echoes."), tool("echo", "Shouts."));
        pins.say(&before, PinVerdict::Accepted);
        let mut pinning = pinning(&pins).0;
        assert!(pinning.judge(&server, listing(std::slice::from_ref(&before))).await.is_some());
        pins.set_version(None);
        assert!(pinning.judge(&server, listing(std::slice::from_ref(&after))).await.is_none());
        assert!(server.served().is_other("echo", &before.hash()), "a call of the earlier tool is refused");
        assert_eq!(pins.asked.lock().unwrap().len(), 1);
        pins.set_version(Some(1));
        let judged = pinning.judge(&server, listing(std::slice::from_ref(&after))).await.unwrap();
        assert_eq!(names(&judged.waiting), ["echo"]);
    }

    #[tokio::test]
    async fn definitions_are_hashed_once_and_on_the_computing_threads() {
        let (pins, server) = (FakePins::new(), server());
        let (echo, more) = (tool("echo", "Echoes."), tool("more", "Is."));
        let mut pinning = pinning(&pins).0;
        pinning.judge(&server, listing(std::slice::from_ref(&echo))).await.unwrap();
        let (free, is_free) = std::sync::mpsc::channel::<()>();
        let mut busy = pin!(server.compute().run("ann", move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        pinning.judge(&server, listing(std::slice::from_ref(&echo))).await.unwrap();
        {
            let mut judging = pin!(pinning.judge(&server, listing(&[echo.clone(), more.clone()])));
            assert!((&mut judging).now_or_never().is_none());
            assert_eq!(server.compute().queued(), 1);
            free.send(()).unwrap();
            busy.await.unwrap().unwrap();
            assert_eq!(names(&judging.await.unwrap().waiting), ["echo", "more"]);
        }
        let asked = pins.asked.lock().unwrap();
        assert_eq!(asked.last().unwrap(), &[echo.seen(), more.seen()]);
    }

    #[tokio::test]
    async fn acceptance_on_this_instance_is_noticed_at_once() {
        let (mut pinning, accepted) = pinning(&FakePins::new());
        let mut waiting = pin!(pinning.accepted());
        assert!(futures::poll!(&mut waiting).is_pending());
        accepted.notify_waiters();
        assert!(futures::poll!(&mut waiting).is_ready());
    }

    #[tokio::test]
    async fn acceptance_that_nobody_waited_for_is_noticed_by_the_version_and_once() {
        let (pins, server) = (FakePins::new(), server());
        let mut pinning = pinning(&pins).0;
        pinning.judge(&server, listing(&[])).await.unwrap();
        let mut version = pinning.version;
        let mut is_noticed = async |within: Duration| {
            timeout(within, until_moved(&*pins, &mut version, Duration::from_millis(1))).await.is_ok()
        };
        assert!(!is_noticed(MOMENT).await, "nothing was accepted");
        pins.set_version(None);
        assert!(!is_noticed(MOMENT).await, "nobody knows");
        pins.set_version(Some(2));
        assert!(is_noticed(Duration::from_secs(60)).await);
        assert!(!is_noticed(MOMENT).await);
    }
}
