//! The list of a server's tools, page by page, within bounds: whatever is beyond them is set aside, and nothing is read
//! without an end.

use std::collections::HashSet;
use std::time::Duration;

use rmcp::model::{ListToolsResult, Tool};
use serde_json::Value;
use tokio::time::timeout;

use crate::base::json::length::bytes_of;
use crate::base::unicode_safety::on_one_line;
use crate::ports::tool::ToolOutput;
use crate::ports::tool::mcp::connection::{McpConnection, ServerEra};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::listed_tool::{ListedTool, TOOL_NAME_BYTES, is_tool_name};
use crate::ports::tool::mcp::settings::{PreparedServer, ServerTarget};
use crate::ports::vault::credentials::UsedSecrets;

/// Tools of one server that are taken.
pub const LISTED_TOOLS: usize = 256;
/// Pages of one list that are read.
pub const LISTING_PAGES: usize = 50;
/// Longest cursor of a page that is read.
pub const CURSOR_BYTES: usize = 4 * 1_024;
/// Bytes of all tools of one server that are taken, as JSON.
pub const LISTING_BYTES: usize = 2 * 1_024 * 1_024;
/// Tools that are set aside and named.
const NAMED_ASIDE: usize = 256;
/// Longest reason why a tool is set aside, in characters.
const WHY_CHARS: usize = 300;
/// Stands for the tools on pages that are not read.
const REST: &str = "(the rest of the list)";
/// For one page.
const LIST_WITHIN: Duration = Duration::from_secs(30);
/// For all pages, where somebody waits for them.
pub const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// When to list again where the server does not say, and the bounds of its word, in seconds.
const AGAIN_AFTER: u64 = 300;
const SOONEST: u64 = 30;
const LATEST: u64 = 3_600;

/// The tools that a server lists, and those of them that can't be used.
pub struct ToolListing {
    /// Those that can be used, in the order in which they are listed.
    pub tools: Vec<ListedTool>,
    /// Those that can't; the first of them, where there are many.
    pub set_aside: Vec<SetAsideTool>,
    /// When to list again.
    pub again: Duration,
}

/// A tool that is listed, and is not there for anybody.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetAsideTool {
    /// Its name at the server.
    pub name: String,
    /// Why, in a sentence.
    pub why: String,
    /// Why, in kind.
    pub reason: AsideReason,
}

/// The kind of reason for which a tool is set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsideReason {
    /// Its definition can't be used: it is another one than any that was used before.
    Definition,
    /// There is no room for it, or its name is none: nothing is known of its definition.
    Unread,
}

impl SetAsideTool {
    /// A tool whose definition is not known. Name and reason may hold words of the server: they are cut, and shown on
    /// one line.
    pub fn new(name: &str, why: &str) -> SetAsideTool {
        let shown = |text: &str, most: usize| on_one_line(&text.chars().take(most).collect::<String>());
        SetAsideTool { name: shown(name, TOOL_NAME_BYTES), why: shown(why, WHY_CHARS), reason: AsideReason::Unread }
    }

    /// A tool that was read and can't be used; one whose name is none is nobody's.
    pub fn of_definition(name: &str, why: &str) -> SetAsideTool {
        let reason = if is_tool_name(name) { AsideReason::Definition } else { AsideReason::Unread };
        SetAsideTool { reason, ..SetAsideTool::new(name, why) }
    }
}

impl ToolListing {
    /// The names of the tools that are listed with a definition that can't be used.
    pub fn unfit(&self) -> Vec<&str> {
        let unfit = self.set_aside.iter().filter(|tool| tool.reason == AsideReason::Definition);
        unfit.map(|tool| tool.name.as_str()).collect()
    }
}

/// Lists the tools of a server. What was sent to it does not come back in them.
///
/// # Errors
/// Why the list can't be had; the earlier one stays.
pub async fn list(connection: &McpConnection, server: &PreparedServer) -> Result<ToolListing, McpFault> {
    let mut gathered = GatheredTools::new(server);
    let mut cursor = None;
    loop {
        let page = page(connection, &server.name, cursor).await?;
        gathered.hint(page.ttl_ms);
        gathered.add(clean(connection.used_secrets(), &server.name, page.tools).await?);
        cursor = gathered.next(page.next_cursor);
        if cursor.is_none() {
            return Ok(gathered.listing());
        }
    }
}

/// Lists the tools of a server as [`list`] does, all pages within this time.
///
/// # Errors
/// Why the list can't be had.
pub async fn list_within(
    connection: &McpConnection,
    server: &PreparedServer,
    limit: Duration,
) -> Result<ToolListing, McpFault> {
    let slow = |_| Err(McpFault::Slow { server: server.name.clone(), after: limit });
    timeout(limit, list(connection, server)).await.unwrap_or_else(slow)
}

/// Whether tools are listed over a connection before they are called over it. Over HTTP the current revision has some
/// arguments in headers as well, and the library learns from a list of the same connection which ones.
pub fn comes_before_calls(connection: &McpConnection, server: &PreparedServer) -> bool {
    connection.era() == ServerEra::Modern && matches!(server.target, ServerTarget::Url(_))
}

async fn page(connection: &McpConnection, server: &str, cursor: Option<String>) -> Result<ListToolsResult, McpFault> {
    match timeout(LIST_WITHIN, connection.list_page(cursor)).await {
        Ok(Ok(page)) => Ok(page),
        Ok(Err(error)) => Err(McpFault::of_call(server, error).cleaned(connection.used_secrets()).await),
        Err(_) => Err(McpFault::Slow { server: server.to_owned(), after: LIST_WITHIN }),
    }
}

/// The tools without what was sent to the server, which may say it again.
async fn clean(used_secrets: &UsedSecrets, server: &str, tools: Vec<Tool>) -> Result<Vec<Tool>, McpFault> {
    if used_secrets.is_empty() {
        return Ok(tools);
    }
    let written = serde_json::to_value(tools).map_err(|error| unreadable(server, &error))?;
    let Value::Array(tools) = used_secrets.clean_output(ToolOutput::json(written)).await.data else {
        let why = "its list has too many secrets to be shown".to_owned();
        return Err(McpFault::Protocol { server: server.to_owned(), why });
    };
    let read = tools.into_iter().map(serde_json::from_value).collect::<Result<Vec<Tool>, _>>();
    read.map_err(|error| unreadable(server, &error))
}

/// Not in the words of the parser, which may quote what it has read.
fn unreadable(server: &str, error: &serde_json::Error) -> McpFault {
    let why = format!("its list can't be read: {:?}", error.classify());
    McpFault::Protocol { server: server.to_owned(), why }
}

/// The tools of the pages so far.
struct GatheredTools<'a> {
    server: &'a PreparedServer,
    names: HashSet<String>,
    /// The cursors of the pages that were read, or are about to be.
    cursors: HashSet<String>,
    bytes: usize,
    /// Whether there was no room for a tool any more.
    is_out_of_bytes: bool,
    tools: Vec<ListedTool>,
    set_aside: Vec<SetAsideTool>,
    /// The shortest time for which a page says that it is good.
    good_for: Option<Duration>,
}

impl GatheredTools<'_> {
    fn new(server: &PreparedServer) -> GatheredTools<'_> {
        GatheredTools {
            server,
            names: HashSet::new(),
            cursors: HashSet::new(),
            bytes: 0,
            is_out_of_bytes: false,
            tools: Vec::new(),
            set_aside: Vec::new(),
            good_for: None,
        }
    }

    fn hint(&mut self, ttl_ms: Option<u64>) {
        if let Some(said) = ttl_ms.map(Duration::from_millis) {
            self.good_for = Some(self.good_for.map_or(said, |known| known.min(said)));
        }
    }

    fn add(&mut self, page: Vec<Tool>) {
        for tool in page {
            // of two tools of one name the first is taken, and one that is not allowed is none of ours
            if !self.server.allows(&tool.name) || self.names.contains(tool.name.as_ref()) {
                continue;
            }
            match self.take(&tool) {
                Ok(listed) => {
                    self.names.insert(listed.name.clone());
                    self.tools.push(listed);
                }
                Err(aside) if self.set_aside.len() < NAMED_ASIDE => self.set_aside.push(aside),
                Err(_) => {}
            }
        }
    }

    /// The tool, if there is room for it.
    fn take(&mut self, tool: &Tool) -> Result<ListedTool, SetAsideTool> {
        let no_room = |why: String| Err(SetAsideTool::new(&tool.name, &why));
        if self.tools.len() >= LISTED_TOOLS {
            return no_room(format!("the server lists more than {LISTED_TOOLS} tools"));
        }
        let listed = ListedTool::read(tool).map_err(|why| SetAsideTool::of_definition(&tool.name, &why))?;
        let bytes = self.bytes + bytes_of(&listed.description) + bytes_of(&listed.parameters);
        let bytes = bytes + listed.output_schema.as_ref().map_or(0, bytes_of);
        if bytes > LISTING_BYTES {
            self.is_out_of_bytes = true;
            return no_room(format!("the tools before it have {LISTING_BYTES} bytes together, or nearly so many"));
        }
        self.bytes = bytes;
        Ok(listed)
    }

    /// The cursor of the page that is read next; `None`: the list ends here. Pages that are there and are not read are
    /// told as a tool that is set aside.
    fn next(&mut self, cursor: Option<String>) -> Option<String> {
        // a cursor that comes again leads round in a circle
        let cursor = cursor.filter(|cursor| !self.cursors.contains(cursor))?;
        let why = if self.is_out_of_bytes || self.tools.len() >= LISTED_TOOLS {
            "the tools before it take all the room".to_owned()
        } else if cursor.len() > CURSOR_BYTES {
            format!("the cursor of its page is longer than {CURSOR_BYTES} bytes")
        } else if self.cursors.len() + 1 >= LISTING_PAGES {
            format!("the list has more than {LISTING_PAGES} pages")
        } else {
            self.cursors.insert(cursor.clone());
            return Some(cursor);
        };
        self.set_aside.push(SetAsideTool::new(REST, &why));
        None
    }

    fn listing(self) -> ToolListing {
        let again = self.good_for.map_or(Duration::from_secs(AGAIN_AFTER), |said| {
            said.clamp(Duration::from_secs(SOONEST), Duration::from_secs(LATEST))
        });
        ToolListing { tools: self.tools, set_aside: self.set_aside, again }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::egress::{Egress, Settings};
    use crate::ports::tool::mcp::connection::fixture::{NewServer, OldServer};
    use crate::ports::tool::mcp::settings::{McpServerDefinition, read};

    fn server(more: Value) -> std::sync::Arc<PreparedServer> {
        let mut written = json!({ "name": "local", "command": ["server"] });
        written.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let server: McpServerDefinition = serde_json::from_value(written).unwrap();
        read(&[server], &Egress::new(&Settings::default()).unwrap()).unwrap().remove(0)
    }

    fn tool(name: &str, schema: Value) -> Tool {
        serde_json::from_value(json!({ "name": name, "description": "Does.", "inputSchema": schema })).unwrap()
    }

    fn plain(name: &str) -> Tool {
        tool(name, json!({ "type": "object" }))
    }

    /// A tool that takes so many bytes.
    fn padded(n: usize, bytes: usize) -> Tool {
        let schema = |title: usize| json!({ "type": "object", "properties": {}, "title": "x".repeat(title) });
        let frame = bytes_of("Does.") + bytes_of(&schema(0));
        tool(&format!("t{n}"), schema(bytes - frame))
    }

    fn gathered(server: &PreparedServer, tools: Vec<Tool>) -> ToolListing {
        let mut gathered = GatheredTools::new(server);
        gathered.add(tools);
        gathered.listing()
    }

    fn names(listing: &ToolListing) -> Vec<&str> {
        listing.tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    #[test]
    fn tools_beyond_the_most_are_set_aside() {
        let listed = |count: usize| gathered(&server(json!({})), (0..count).map(|n| plain(&format!("t{n}"))).collect());
        let most = listed(LISTED_TOOLS);
        assert_eq!((most.tools.len(), most.set_aside.len()), (LISTED_TOOLS, 0));
        let more = listed(LISTED_TOOLS + 1);
        assert_eq!(more.tools.len(), LISTED_TOOLS);
        assert_eq!(more.set_aside, [SetAsideTool::new("t256", "the server lists more than 256 tools")]);
        assert_eq!(listed(LISTED_TOOLS + NAMED_ASIDE + 1).set_aside.len(), NAMED_ASIDE);
    }

    #[test]
    fn tools_are_taken_up_to_the_most_bytes_and_set_aside_one_byte_beyond_it() {
        let server = server(json!({}));
        let part = LISTING_BYTES / 64;
        let mut tools: Vec<Tool> = (0..64).map(|n| padded(n, part)).collect();
        assert_eq!(gathered(&server, tools.clone()).tools.len(), 64);
        tools[63] = padded(63, part + 1);
        let beyond = gathered(&server, tools);
        assert_eq!((beyond.tools.len(), beyond.set_aside.len()), (63, 1));
    }

    #[test]
    fn pages_behind_a_list_that_is_full_are_not_read_and_that_is_told() {
        let server = server(json!({}));
        let behind = |tools: Vec<Tool>| {
            let mut gathered = GatheredTools::new(&server);
            gathered.add(tools);
            let next = gathered.next(Some("2".to_owned()));
            (next.is_some(), gathered.listing().set_aside.last().map(|told| told.name.clone()))
        };
        let many = |count: usize| (0..count).map(|n| plain(&format!("t{n}"))).collect();
        assert_eq!(behind(many(LISTED_TOOLS - 1)), (true, None));
        assert_eq!(behind(many(LISTED_TOOLS)), (false, Some(REST.to_owned())));
        let long = |count: usize| (0..count).map(|n| padded(n, LISTING_BYTES / 64)).collect();
        assert_eq!(behind(long(64)), (true, None));
        assert_eq!(behind(long(65)), (false, Some(REST.to_owned())));
    }

    #[test]
    fn cursor_is_taken_at_its_longest_and_the_list_ends_one_byte_beyond_it() {
        let server = server(json!({}));
        let behind = |cursor: String| {
            let mut gathered = GatheredTools::new(&server);
            let next = gathered.next(Some(cursor));
            (next.is_some(), gathered.listing().set_aside)
        };
        assert_eq!(behind("x".repeat(CURSOR_BYTES)), (true, vec![]));
        let told = SetAsideTool::new(REST, "the cursor of its page is longer than 4096 bytes");
        assert_eq!(behind("x".repeat(CURSOR_BYTES + 1)), (false, vec![told]));
    }

    #[test]
    fn cursor_that_comes_again_ends_the_list() {
        let server = server(json!({}));
        let mut gathered = GatheredTools::new(&server);
        let next = ["2", "3", "2"].map(|cursor| gathered.next(Some(cursor.to_owned())));
        assert_eq!(next.each_ref().map(Option::as_deref), [Some("2"), Some("3"), None]);
        assert!(gathered.listing().set_aside.is_empty());
    }

    #[test]
    fn tool_that_is_not_allowed_or_comes_twice_is_left_out_and_one_that_is_no_tool_is_set_aside() {
        let all = gathered(&server(json!({})), vec![plain("a"), plain("a"), plain("b c"), plain("d")]);
        assert_eq!(names(&all), ["a", "d"]);
        assert_eq!(all.set_aside.len(), 1);
        assert_eq!(all.set_aside[0].name, "b c");
        let some = gathered(&server(json!({ "allow": ["b"] })), vec![plain("a"), plain("b"), plain("c d")]);
        assert_eq!((names(&some), some.set_aside.len()), (vec!["b"], 0));
    }

    #[test]
    fn tool_that_is_set_aside_for_its_definition_is_told_from_one_without_room() {
        let mut tools = vec![tool("wrong", json!({ "type": "array" })), plain("b c"), plain(&"n".repeat(129))];
        let few = gathered(&server(json!({})), tools.clone());
        assert_eq!((few.unfit(), few.set_aside.len()), (vec!["wrong"], 3), "a name that is none is no tool's");
        tools.splice(0..0, (0..LISTED_TOOLS).map(|n| plain(&format!("t{n}"))));
        let full = gathered(&server(json!({})), tools);
        assert_eq!((full.unfit().len(), full.set_aside.len()), (0, 3));
    }

    #[test]
    fn name_that_is_set_aside_is_shown_on_one_line_and_not_for_ever() {
        let aside = SetAsideTool::new(&format!("a\nb{}", "c".repeat(1_000)), "no");
        assert_eq!(aside.name.len(), TOOL_NAME_BYTES);
        assert!(aside.name.starts_with("a bc"));
        assert_eq!(SetAsideTool::new("a", &"x".repeat(1_000)).why.len(), WHY_CHARS);
    }

    #[test]
    fn list_is_asked_for_again_as_the_server_says_within_bounds() {
        let again = |said: &[Option<u64>]| {
            let server = server(json!({}));
            let mut gathered = GatheredTools::new(&server);
            said.iter().for_each(|ttl_ms| gathered.hint(*ttl_ms));
            gathered.listing().again.as_secs()
        };
        assert_eq!(again(&[None]), 300);
        assert_eq!([again(&[Some(0)]), again(&[Some(60_000)]), again(&[Some(u64::MAX)])], [30, 60, 3_600]);
        assert_eq!(again(&[Some(90_000), None, Some(60_000)]), 60);
    }

    #[tokio::test]
    async fn list_without_an_end_is_read_up_to_the_most_pages() {
        let connection = OldServer::connected(ServerEra::Legacy).await.1;
        let listing = list(&connection, &server(json!({}))).await.unwrap();
        // one on each page
        assert_eq!(listing.tools.len(), LISTING_PAGES);
        assert_eq!(listing.tools[LISTING_PAGES - 1].name, format!("tool-{}", LISTING_PAGES - 1));
        assert_eq!(listing.set_aside, [SetAsideTool::new(REST, "the list has more than 50 pages")]);
    }

    #[tokio::test]
    async fn list_that_is_not_there_in_its_time_is_slow() {
        let (_server, connection) = NewServer::connected().await;
        let limit = Duration::from_millis(1);
        let fault = list_within(&connection, &server(json!({})), limit).await.err();
        assert_eq!(fault, Some(McpFault::Slow { server: "local".into(), after: limit }));
    }

    #[tokio::test]
    async fn list_comes_before_calls_over_http_where_the_revision_is_the_current_one() {
        let (local, mut remote) = (server(json!({})), server(json!({})));
        let url = url::Url::parse("https://mcp.example.org/mcp").unwrap();
        std::sync::Arc::get_mut(&mut remote).unwrap().target = ServerTarget::Url(url);
        let (_new, new) = NewServer::connected().await;
        let (_old, old) = OldServer::connected(ServerEra::Legacy).await;
        assert!(comes_before_calls(&new, &remote));
        assert!(!comes_before_calls(&new, &local) && !comes_before_calls(&old, &remote));
    }

    #[tokio::test]
    async fn secret_that_a_server_repeats_is_taken_out_of_its_list() {
        let used_secrets = UsedSecrets::default();
        let tools = || vec![tool("a", json!({ "type": "object", "title": "sent with canary-8" }))];
        assert_eq!(clean(&used_secrets, "local", tools()).await.unwrap(), tools());
        used_secrets.add(["canary-8"]);
        let cleaned = clean(&used_secrets, "local", tools()).await.unwrap();
        assert_eq!(cleaned, vec![tool("a", json!({ "type": "object", "title": "sent with [redacted]" }))]);
    }
}
