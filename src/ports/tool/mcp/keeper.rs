//! Keeps one MCP server connected, and the tools that it lists in the catalog.
//!
//! A server that goes away keeps its tools: their calls say that it is away. Time here is real, because processes and
//! addresses are.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::backoff::full_jitter;
use crate::base::clock::pause;
use crate::base::compute::ADMIN;
use crate::base::redact::Redactor;
use crate::ports::tool::catalog::ToolCatalog;
use crate::ports::tool::mcp::connection::McpConnection;
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::listed_tool::ListedTool;
use crate::ports::tool::mcp::listing::{SetAsideTool, comes_before_calls, list};
use crate::ports::tool::mcp::mcp_metrics::ToolCounts;
use crate::ports::tool::mcp::mcp_tool::McpTool;
use crate::ports::tool::mcp::pinning::{JUDGE_AGAIN, JudgedListing, Pinning};
use crate::ports::tool::mcp::server::{McpServer, ServerStatus};
use crate::ports::tool::policy::ToolPolicy;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, Tool};

/// The wait after the first failure, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A connection that has lived for so long was a good one: it is made again at once.
const STEADY: Duration = Duration::from_secs(60);
/// After a list that could not be had.
const LIST_AGAIN: Duration = Duration::from_secs(60);
/// Lists one after the other that are not there in time: with the last of them a connection is given up over which no
/// call was answered meanwhile.
const MOST_SLOW: u32 = 3;
/// A burst of changes is over once there was none for so long, or after so long at the latest.
const QUIET: Duration = Duration::from_millis(200);
const LONGEST_BURST: Duration = Duration::from_secs(5);
/// Lists begin so far apart at least, whatever a server says of changes.
const PACE: Duration = Duration::from_secs(1);
/// How often connections of tenants are looked at, and for how long one may lie unused.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(300);
/// Tools that are set aside and logged one by one.
const LOGGED_ASIDE: usize = 20;

/// Keeps a server connected and its tools in the catalog, until it is stopped. `first` hears of it once the server was
/// tried.
pub async fn keep(
    server: Arc<McpServer>,
    catalog: ToolCatalog,
    pinning: Pinning,
    first: oneshot::Sender<()>,
    stop: CancellationToken,
) {
    let mut keeper = Keeper {
        server: Arc::clone(&server),
        catalog,
        pinning,
        first: Some(first),
        stop: stop.clone(),
        registered: Vec::new(),
        set_aside: BTreeSet::new(),
        away: None,
        unlisted: None,
        tries: 0,
    };
    let (last, ()) = tokio::join!(keeper.run(), sweep(&server, &stop));
    let closed = async {
        if let Some(connection) = last {
            connection.close().await;
        }
    };
    tokio::join!(server.stop(), closed);
}

/// Ends unused connections of tenants.
async fn sweep(server: &McpServer, stop: &CancellationToken) {
    while stop.run_until_cancelled(pause(SWEEP_EVERY)).await.is_some() {
        server.sweep(IDLE);
    }
}

/// A tool as it is listed, and as it is offered.
type KeptTool = (Arc<McpTool>, Arc<RegisteredTool>);

struct Keeper {
    server: Arc<McpServer>,
    catalog: ToolCatalog,
    pinning: Pinning,
    first: Option<oneshot::Sender<()>>,
    stop: CancellationToken,
    /// The tools of the last list, those that wait among them.
    registered: Vec<KeptTool>,
    /// As they were logged.
    set_aside: BTreeSet<SetAsideTool>,
    /// The word of the fault that was logged, while the server is away.
    away: Option<&'static str>,
    /// The word of the fault that was logged, while its tools can't be listed.
    unlisted: Option<&'static str>,
    /// Failures one after the other.
    tries: u32,
}

impl Keeper {
    /// Connects again and again, until it is stopped; answers the connection that there is then.
    async fn run(&mut self) -> Option<Arc<McpConnection>> {
        let (server, stop) = (Arc::clone(&self.server), self.stop.clone());
        loop {
            match stop.run_until_cancelled(server.connect()).await? {
                Ok(connection) => {
                    let since = Instant::now();
                    let Some(fault) = self.follow(&connection).await else { return Some(connection) };
                    self.lost(fault, since.elapsed());
                }
                Err(fault) => self.failed(fault),
            }
            self.tried();
            stop.run_until_cancelled(pause(self.wait())).await?;
        }
    }

    /// Lists the tools as often as they change. Answers why the connection is no good any more; `None`: it is stopped.
    async fn follow(&mut self, connection: &Arc<McpConnection>) -> Option<McpFault> {
        let (stop, mut slow) = (self.stop.clone(), SlowLists::default());
        let mut is_ready = !comes_before_calls(connection, self.server.prepared());
        if is_ready {
            self.connected(connection);
        }
        loop {
            let begun = Instant::now();
            let listed = stop.run_until_cancelled(self.list(connection)).await?;
            let again = match self.judged(listed, connection, &mut slow) {
                Ok(again) => again,
                Err(fault) => return Some(fault),
            };
            // a list that can't be had holds up no call
            if !std::mem::replace(&mut is_ready, true) {
                self.connected(connection);
            }
            self.tried();
            if let ControlFlow::Break(end) = self.until_due(connection, begun, again).await {
                return end;
            }
        }
    }

    /// Returns once the tools are to be listed again: after this time, or some while after the last list has begun
    /// where something has changed or was accepted. Breaks as [`Keeper::follow`] ends.
    async fn until_due(
        &mut self,
        connection: &McpConnection,
        begun: Instant,
        again: Duration,
    ) -> ControlFlow<Option<McpFault>> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => return ControlFlow::Break(None),
            () = connection.closed() => return ControlFlow::Break(Some(self.ended(connection))),
            () = pause(again) => return ControlFlow::Continue(()),
            () = connection.changed() => {}
            () = self.pinning.accepted() => {}
        }
        match stop.run_until_cancelled(settle(connection, begun)).await {
            Some(()) => ControlFlow::Continue(()),
            None => ControlFlow::Break(None),
        }
    }

    /// When to list again after a list, or why that is not done over this connection.
    fn judged(
        &mut self,
        listed: Result<Duration, McpFault>,
        connection: &McpConnection,
        slow: &mut SlowLists,
    ) -> Result<Duration, McpFault> {
        match listed {
            Ok(again) => {
                *slow = SlowLists::default();
                Ok(again)
            }
            Err(_) if connection.is_closed() || connection.has_flooded() => Err(self.ended(connection)),
            Err(fault) if is_end(&fault) || slow.are_too_many(&fault, connection.answered()) => Err(fault),
            Err(fault) => {
                self.log_unlisted(&fault);
                Ok(LIST_AGAIN)
            }
        }
    }

    /// Lists the tools, and puts them in the catalog. Answers when to list again.
    async fn list(&mut self, connection: &McpConnection) -> Result<Duration, McpFault> {
        let listing = list(connection, self.server.prepared()).await?;
        self.unlisted = None;
        let Some(listing) = self.pinning.judge(&self.server, listing).await else { return Ok(JUDGE_AGAIN) };
        let again = listing.again;
        self.take(listing).await;
        Ok(again)
    }

    /// Puts what a server lists in the place of what it listed before.
    async fn take(&mut self, listing: JudgedListing) {
        let name = &self.server.prepared().name;
        let mut set_aside: BTreeSet<SetAsideTool> = listing.set_aside.into_iter().collect();
        let (offered, unfit) = registered(&self.server, listing.tools, &self.registered).await;
        let (waiting, unfit_waiting) = registered(&self.server, listing.waiting, &self.registered).await;
        set_aside.extend(unfit.into_iter().chain(unfit_waiting));
        let left_out = self.catalog.replace_judged(name, tools(&offered), tools(&waiting));
        set_aside.extend(left_out.iter().map(|tool| SetAsideTool::new(tool, "another tool has its name")));
        let there =
            |kept: &[KeptTool]| kept.iter().filter(|(tool, _)| !left_out.contains(&tool.definition().name)).count();
        let counts = ToolCounts { listed: there(&offered), waiting: there(&waiting), set_aside: set_aside.len() };
        self.server.metrics().set_tools(name, counts);
        self.server.set_waiting(counts.waiting);
        self.registered = offered.into_iter().chain(waiting).collect();
        self.log_set_aside(set_aside);
    }

    fn connected(&mut self, connection: &Arc<McpConnection>) {
        let server = &self.server.prepared().name;
        let revision = connection.revision();
        match self.away.take() {
            Some(_) => tracing::info!(server, revision, "an MCP server is back"),
            None => tracing::info!(server, revision, "an MCP server is connected"),
        }
        self.server.set(ServerStatus::Connected(Arc::clone(connection)));
    }

    /// No connection was made.
    fn failed(&mut self, fault: McpFault) {
        self.tries = self.tries.saturating_add(1);
        self.log_away(&fault);
        self.server.set(ServerStatus::Unavailable(fault));
    }

    /// A connection has ended, or is given up. After a good one the next is made at once, and calls wait for it.
    fn lost(&mut self, fault: McpFault, lived: Duration) {
        // one of a server that has hung, or that floods, was no good one, however long it has lived
        if lived < STEADY || matches!(fault, McpFault::Slow { .. } | McpFault::Flood { .. }) {
            return self.failed(fault);
        }
        self.tries = 0;
        self.log_away(&fault);
        self.server.set(ServerStatus::Connecting);
    }

    fn wait(&self) -> Duration {
        match self.tries {
            0 => Duration::ZERO,
            tries => full_jitter(BACK_OFF.0, tries, BACK_OFF.1, fastrand::f64()),
        }
    }

    /// The server was tried: whoever waits for that goes on.
    fn tried(&mut self) {
        if let Some(first) = self.first.take() {
            let _ = first.send(());
        }
    }

    fn ended(&self, connection: &McpConnection) -> McpFault {
        if connection.has_flooded() {
            return McpFault::Flood { server: self.server.prepared().name.clone() };
        }
        let why = match connection.stderr_line() {
            line if line.is_empty() => "it ended".to_owned(),
            line => format!("it ended; it said: {line}"),
        };
        McpFault::Away { server: self.server.prepared().name.clone(), why }
    }

    /// Once for each kind of fault, until the server is back.
    fn log_away(&mut self, fault: &McpFault) {
        if self.away.replace(fault.word()) != Some(fault.word()) {
            self.log_fault("an MCP server is away, and is tried again", fault);
        }
    }

    /// Once for each kind of fault, until its tools can be listed.
    fn log_unlisted(&mut self, fault: &McpFault) {
        if self.unlisted.replace(fault.word()) != Some(fault.word()) {
            self.log_fault("the tools of an MCP server can't be listed, the earlier ones stay", fault);
        }
    }

    /// Without the secrets of its environment, which a server may print.
    fn log_fault(&self, message: &str, fault: &McpFault) {
        let prepared = self.server.prepared();
        let detail = fault.detail();
        let why = Redactor::new(prepared.secrets()).text(&detail).into_owned();
        tracing::warn!(server = prepared.name, fault = fault.word(), why, "{message}");
    }

    /// Those that were not set aside before.
    fn log_set_aside(&mut self, set_aside: BTreeSet<SetAsideTool>) {
        let server = &self.server.prepared().name;
        let fresh: Vec<&SetAsideTool> = set_aside.difference(&self.set_aside).collect();
        for SetAsideTool { name, why, .. } in fresh.iter().take(LOGGED_ASIDE) {
            tracing::warn!(server, tool = name, why, "a tool of an MCP server is set aside");
        }
        if let more @ 1.. = fresh.len().saturating_sub(LOGGED_ASIDE) {
            tracing::warn!(server, more, "more tools of an MCP server are set aside");
        }
        self.set_aside = set_aside;
    }
}

/// Lists that were not there in time, one after the other. A server that answers calls meanwhile has not hung.
#[derive(Default)]
struct SlowLists {
    in_a_row: u32,
    /// The answered calls of the connection at the last of them.
    answered: u64,
}

impl SlowLists {
    /// Counts a list that failed, by its fault and the answered calls of its connection. Answers whether the connection
    /// is given up: calls that are under way keep it until they end.
    fn are_too_many(&mut self, fault: &McpFault, answered: u64) -> bool {
        self.in_a_row = match fault {
            McpFault::Slow { .. } if answered == self.answered => self.in_a_row + 1,
            McpFault::Slow { .. } => 1,
            _ => 0,
        };
        self.answered = answered;
        self.in_a_row >= MOST_SLOW
    }
}

/// Waits until the server has been quiet for a moment, so that a burst of changes is one list.
async fn settle(connection: &McpConnection, listed: Instant) {
    let burst = async { while timeout(QUIET, connection.changed()).await.is_ok() {} };
    let _ = timeout(LONGEST_BURST, burst).await;
    pause(PACE.saturating_sub(listed.elapsed())).await;
}

/// Whether a list that failed so will not be had over this connection. A server that is slow, or that refuses to list,
/// may have calls under way.
fn is_end(fault: &McpFault) -> bool {
    !matches!(fault, McpFault::Slow { .. } | McpFault::Refused { .. } | McpFault::Protocol { .. })
}

/// The tools as they are offered, and those whose schema can't be used. One that has not changed is the one that it
/// was, so that what was made of it stays good. The others are compiled once, one after the other, on the computing
/// threads: a list may have many schemas that take long.
async fn registered(
    server: &Arc<McpServer>,
    listed: Vec<ListedTool>,
    earlier: &[KeptTool],
) -> (Vec<KeptTool>, Vec<SetAsideTool>) {
    let (mut kept, mut unfit) = (Vec::with_capacity(listed.len()), Vec::new());
    for tool in listed {
        let (name, known) = (tool.name.clone(), earlier.iter().find(|(known, _)| *known.listed() == tool).cloned());
        let registered = match known {
            Some(known) => Ok(known),
            None => {
                let owner = Arc::clone(server);
                let compiled = server.compute().run(ADMIN, move || register(&owner, tool)).await;
                compiled.unwrap_or_else(|panicked| Err(panicked.to_string()))
            }
        };
        match registered {
            Ok(registered) => kept.push(registered),
            Err(why) => unfit.push(SetAsideTool::new(&name, &why)),
        }
    }
    (kept, unfit)
}

fn tools(kept: &[KeptTool]) -> Vec<Arc<RegisteredTool>> {
    kept.iter().map(|(_, tool)| Arc::clone(tool)).collect()
}

fn register(server: &Arc<McpServer>, listed: ListedTool) -> Result<KeptTool, String> {
    let configured = server.prepared().policy(&listed.name);
    let tool = Arc::new(McpTool::new(Arc::clone(server), listed));
    let policy = policy(configured, tool.definition());
    let registered = RegisteredTool::new(Arc::clone(&tool) as Arc<dyn Tool>, policy)?;
    Ok((tool, Arc::new(registered)))
}

/// Results are kept and shown in parts only of tools that read; a hint of the server may say that this one does more.
fn policy(configured: ToolPolicy, definition: &Definition) -> ToolPolicy {
    match definition.only_reads() {
        true => configured,
        false => ToolPolicy { cache: false, output_level: None, ..configured },
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use serde_json::{Value, json};
    use tokio::runtime::Handle;

    use super::*;
    use crate::base::clock::Clock;
    use crate::base::id::Tenant;
    use crate::base::metrics::Metrics;
    use crate::domain::approval::Category;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::connection::ServerEra;
    use crate::ports::tool::mcp::connection::fixture::{NewServer, OldServer};
    use crate::ports::tool::mcp::listing::ToolListing;
    use crate::ports::tool::mcp::mcp_metrics::McpMetrics;
    use crate::ports::tool::mcp::server::McpState;
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};
    use crate::ports::tool::registry::ToolRegistry;
    use crate::ports::vault::credentials::Credentials;

    struct Kept {
        keeper: Keeper,
        metrics: Metrics,
    }

    impl Kept {
        /// Of a server that can't be started: there is no supervisor.
        fn new(tools: Value) -> Kept {
            Kept::of(json!({ "name": "local", "command": ["server"], "tools": tools }))
        }

        fn of(written: Value) -> Kept {
            let egress = Egress::new(&Settings::default()).unwrap();
            let definition: McpServerDefinition = serde_json::from_value(written).unwrap();
            let prepared = read(&[definition], &egress).unwrap().remove(0);
            let metrics = Metrics::new();
            let server = McpServer::new(prepared, Credentials::none(egress), None, McpMetrics::new(&metrics));
            let keeper = Keeper {
                server,
                catalog: ToolCatalog::new(ToolRegistry::new(vec![]).unwrap()),
                pinning: Pinning::new(None, Arc::default()),
                first: None,
                stop: CancellationToken::new(),
                registered: Vec::new(),
                set_aside: BTreeSet::new(),
                away: None,
                unlisted: None,
                tries: 0,
            };
            Kept { keeper, metrics }
        }

        async fn list(&mut self, tools: &[(&str, Value)]) {
            let listing = ToolListing { tools: listed(tools), set_aside: Vec::new(), again: Duration::ZERO };
            let Keeper { server, pinning, .. } = &mut self.keeper;
            let judged = pinning.judge(server, listing).await.unwrap();
            self.keeper.take(judged).await;
        }

        fn tool(&self, name: &str) -> Option<Arc<RegisteredTool>> {
            self.keeper.catalog.current().find(name).cloned()
        }
    }

    fn listed(tools: &[(&str, Value)]) -> Vec<ListedTool> {
        let tool = |(name, schema): &(&str, Value)| {
            let written = json!({ "name": name, "description": "Does.", "inputSchema": schema });
            ListedTool::read(&serde_json::from_value(written).unwrap()).unwrap()
        };
        tools.iter().map(tool).collect()
    }

    fn object() -> Value {
        json!({ "type": "object" })
    }

    #[tokio::test]
    async fn tool_that_has_not_changed_is_the_one_that_it_was() {
        let mut kept = Kept::new(json!({}));
        kept.list(&[("echo", object()), ("gone", object())]).await;
        let (echo, gone) = (kept.tool("local.echo").unwrap(), kept.tool("local.gone"));
        assert!(gone.is_some());
        kept.list(&[("echo", object()), ("new", object())]).await;
        assert!(Arc::ptr_eq(&echo, &kept.tool("local.echo").unwrap()));
        assert!(kept.tool("local.gone").is_none() && kept.tool("local.new").is_some());
        kept.list(&[("echo", json!({ "type": "object", "required": ["text"] }))]).await;
        assert!(!Arc::ptr_eq(&echo, &kept.tool("local.echo").unwrap()));
    }

    #[tokio::test]
    async fn tool_whose_schema_can_t_be_used_is_set_aside_and_counted() {
        let mut kept = Kept::new(json!({}));
        let recursive = json!({ "type": "object", "properties": { "child": { "$ref": "#" } } });
        kept.list(&[("echo", object()), ("tree", recursive)]).await;
        assert!(kept.tool("local.echo").is_some() && kept.tool("local.tree").is_none());
        let text = kept.metrics.text();
        assert!(text.contains(r#"mcp_tools{server="local",state="listed"} 1"#), "{text}");
        assert!(text.contains(r#"mcp_tools{server="local",state="set_aside"} 1"#), "{text}");
        assert_eq!(kept.keeper.set_aside.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["tree"]);
    }

    #[tokio::test]
    async fn tool_that_waits_is_not_offered_and_is_the_one_that_it_was_once_it_is_accepted() {
        let mut kept = Kept::new(json!({}));
        let judged = |tools: &[(&str, Value)], waiting: &[(&str, Value)]| JudgedListing {
            tools: listed(tools),
            waiting: listed(waiting),
            set_aside: Vec::new(),
            again: Duration::ZERO,
        };
        kept.keeper.take(judged(&[("echo", object())], &[("new", object())])).await;
        let waiting = kept.keeper.catalog.current().find_waiting("local.new").cloned().unwrap();
        assert!(kept.tool("local.echo").is_some() && kept.tool("local.new").is_none());
        let text = kept.metrics.text();
        for (state, count) in [("listed", 1), ("waiting", 1), ("set_aside", 0)] {
            assert!(text.contains(&format!("mcp_tools{{server=\"local\",state=\"{state}\"}} {count}")), "{text}");
        }
        assert_eq!(kept.keeper.server.health().waiting_tools, Some(1));
        kept.keeper.take(judged(&[("echo", object()), ("new", object())], &[])).await;
        assert!(Arc::ptr_eq(&waiting, &kept.tool("local.new").unwrap()), "nothing is compiled twice");
        assert!(kept.keeper.catalog.current().waiting().next().is_none());
        assert_eq!(kept.keeper.server.health().waiting_tools, None);
    }

    #[tokio::test]
    async fn schemas_are_compiled_once_and_on_the_computing_threads() {
        let mut kept = Kept::new(json!({}));
        kept.list(&[("echo", object())]).await;
        let compute = kept.keeper.server.compute().clone();
        let (free, is_free) = std::sync::mpsc::channel::<()>();
        let mut busy = pin!(compute.run("ann", move || is_free.recv()));
        assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
        kept.list(&[("echo", object())]).await;
        {
            let more = [("echo", object()), ("new", object())];
            let mut listing = pin!(kept.list(&more));
            assert!((&mut listing).now_or_never().is_none());
            assert_eq!(compute.queued(), 1);
            free.send(()).unwrap();
            busy.await.unwrap().unwrap();
            listing.await;
        }
        assert!(kept.tool("local.new").is_some());
    }

    #[test]
    fn results_are_not_kept_of_a_tool_that_does_more_than_read() {
        let cached = ToolPolicy { cache: true, ..ToolPolicy::default() };
        let definition = |category: Category| {
            Definition::new("a", "A.", object(), category, crate::domain::approval::Consequence::Low)
        };
        assert!(policy(cached.clone(), &definition(Category::Read)).cache);
        assert!(!policy(cached, &definition(Category::SideEffect)).cache);
    }

    #[tokio::test]
    async fn server_that_can_t_be_started_is_unavailable_and_keeps_nobody_waiting() {
        let Kept { keeper: Keeper { server, catalog, pinning, stop, .. }, .. } = Kept::new(json!({}));
        server.run_on(&Handle::current(), &Clock::system());
        let (first, tried) = oneshot::channel();
        let keeping = tokio::spawn(keep(Arc::clone(&server), catalog, pinning, first, stop.clone()));
        tried.await.unwrap();
        assert_eq!((server.health().state, server.health().fault), (McpState::Unavailable, Some("away")));
        stop.cancel();
        keeping.await.unwrap();
        assert_eq!(server.health().state, McpState::Stopped);
    }

    #[tokio::test]
    async fn tools_are_listed_again_when_the_server_says_so_and_stay_when_it_ends() {
        let Kept { mut keeper, .. } = Kept::new(json!({}));
        let catalog = keeper.catalog.clone();
        let (mut process, connection) = OldServer::connected(ServerEra::Legacy).await;
        let following = tokio::spawn(async move { keeper.follow(&Arc::new(connection)).await });
        process.next_list().await;
        process.say_changed();
        process.next_list().await;
        process.stop();
        assert!(following.await.unwrap().is_some(), "it was not stopped");
        assert!(catalog.current().find("local.tool-7").is_some());
    }

    #[tokio::test]
    async fn tools_are_listed_again_once_their_list_is_as_old_as_the_server_says() {
        let mut keeper = Kept::new(json!({})).keeper;
        let (mut process, connection) = NewServer::connected().await;
        let (listed, ()) = tokio::join!(keeper.list(&connection), async {
            let asked = process.next("tools/list").await;
            let result = json!({ "tools": [], "resultType": "complete", "ttlMs": 90_000, "cacheScope": "private" });
            process.say(json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }));
        });
        assert_eq!(listed, Ok(Duration::from_secs(90)));
        let long = keeper.until_due(&connection, Instant::now(), Duration::from_secs(90));
        assert!(timeout(Duration::from_millis(50), long).await.is_err(), "it is good still");
        let short = keeper.until_due(&connection, Instant::now(), Duration::from_millis(1));
        assert_eq!(timeout(Duration::from_secs(60), short).await, Ok(ControlFlow::Continue(())));
        keeper.stop.cancel();
        let stopped = keeper.until_due(&connection, Instant::now(), Duration::from_secs(90));
        assert_eq!(timeout(Duration::from_secs(60), stopped).await, Ok(ControlFlow::Break(None)));
    }

    #[tokio::test]
    async fn calls_over_http_wait_for_the_first_list_of_a_server_of_the_current_revision() {
        let local = json!({ "name": "local", "command": ["server"] });
        let remote = json!({ "name": "remote", "url": "https://mcp.example.org/mcp" });
        for (written, begun) in [(local, McpState::Connected), (remote, McpState::Connecting)] {
            let Kept { mut keeper, .. } = Kept::of(written);
            let server = Arc::clone(&keeper.server);
            server.run_on(&Handle::current(), &Clock::system());
            let (mut process, connection) = NewServer::connected().await;
            let following = tokio::spawn(async move { keeper.follow(&Arc::new(connection)).await });
            let asked = process.next("tools/list").await;
            assert_eq!(server.health().state, begun);
            process.list(&asked, json!([]));
            let found = server.connection(&Tenant::new("ann").unwrap(), Duration::from_secs(60)).await;
            assert!(found.is_ok(), "{:?}", found.err());
            assert_eq!(server.health().state, McpState::Connected);
            following.abort();
        }
    }

    fn slow() -> McpFault {
        McpFault::Slow { server: "local".into(), after: Duration::from_secs(30) }
    }

    #[tokio::test]
    async fn connection_is_given_up_with_its_third_slow_list_in_a_row() {
        let mut keeper = Kept::new(json!({})).keeper;
        let (_process, connection) = OldServer::connected(ServerEra::Legacy).await;
        let mut lists = SlowLists::default();
        let mut judged = |listed| keeper.judged(listed, &connection, &mut lists);
        for _ in 0..2 {
            assert_eq!([judged(Err(slow())), judged(Err(slow()))], [Ok(LIST_AGAIN), Ok(LIST_AGAIN)]);
            assert_eq!(judged(Ok(STEADY)), Ok(STEADY));
        }
        assert_eq!([judged(Err(slow())), judged(Err(slow()))], [Ok(LIST_AGAIN), Ok(LIST_AGAIN)]);
        assert_eq!(judged(Err(slow())), Err(slow()));
    }

    #[test]
    fn slow_lists_are_counted_anew_after_an_answered_call_and_after_another_failure() {
        let refused = McpFault::Refused { code: -1, message: "no".into() };
        let mut lists = SlowLists::default();
        let mut counted = |fault: &McpFault, answered: &[u64]| -> Vec<bool> {
            answered.iter().map(|answered| lists.are_too_many(fault, *answered)).collect()
        };
        assert_eq!(counted(&slow(), &[0, 0, 1, 1]), [false; 4]);
        assert_eq!(counted(&refused, &[1]), [false]);
        assert_eq!(counted(&slow(), &[1, 1, 1]), [false, false, true]);
    }

    #[test]
    fn server_that_has_hung_is_unavailable_and_waited_for_however_long_its_connection_has_lived() {
        let mut keeper = Kept::new(json!({})).keeper;
        keeper.lost(slow(), STEADY * 10);
        assert_eq!(keeper.tries, 1);
        let health = keeper.server.health();
        assert_eq!((health.state, health.fault), (McpState::Unavailable, Some("slow")));
    }

    #[test]
    fn server_that_floods_is_unavailable_and_waited_for_however_long_its_connection_has_lived() {
        let mut keeper = Kept::new(json!({})).keeper;
        keeper.lost(McpFault::Flood { server: "local".into() }, STEADY * 10);
        let health = keeper.server.health();
        assert_eq!((keeper.tries, health.state, health.fault), (1, McpState::Unavailable, Some("flood")));
    }

    #[test]
    fn waits_grow_with_failures_and_a_good_connection_is_made_again_at_once() {
        let mut keeper = Kept::new(json!({})).keeper;
        let fault = || McpFault::Broken { server: "local".into() };
        for tries in 1..=3 {
            keeper.lost(fault(), STEADY - Duration::from_millis(1));
            assert_eq!(keeper.tries, tries);
            assert!(keeper.wait() <= BACK_OFF.0 * 2_u32.pow(tries - 1));
        }
        keeper.lost(fault(), STEADY);
        assert_eq!((keeper.tries, keeper.wait()), (0, Duration::ZERO));
        assert_eq!(keeper.server.health().state, McpState::Connecting);
    }
}
