//! Rows of the list of tools, and the agents that are offered each.

use serde_json::{Value, json};

use crate::domain::approval::Category;
use crate::http::address::address;
use crate::http::ui::frame::text::beginning_of;
use crate::http::ui::frame::{UiList, Visit};
use crate::http::ui::operations::whole_list::has_text;

/// Characters of a description that a row shows.
const DESCRIPTION: usize = 160;

/// The configured agents, each with whether its model is offered a tool.
pub(super) struct OfferingAgents(Vec<Value>);

impl OfferingAgents {
    /// Those of the API, as it holds for a tenant; none where they can't be read.
    pub(super) async fn ask(visit: &Visit, tenant: Option<&str>) -> OfferingAgents {
        let asked: Vec<(&str, String)> = tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
        let answer = visit.get(&["v1", "agents"], &asked).await.unwrap_or_default();
        OfferingAgents(answer["items"].as_array().cloned().unwrap_or_default())
    }

    /// Their names.
    pub(super) fn names(&self) -> Vec<&Value> {
        self.0.iter().map(|agent| &agent["name"]).collect()
    }

    /// For each agent, whether it is offered this tool, and why not.
    pub(super) fn offers_of(&self, tool: &str) -> Vec<Value> {
        let offer = |agent: &Value| {
            let tools = agent["tools"].as_array()?;
            let offer = tools.iter().find(|offered| offered["name"] == tool)?;
            Some(json!({
                "name": agent["name"],
                "offered": offer["offered"],
                "message": offer["message"],
            }))
        };
        self.0.iter().filter_map(offer).collect()
    }

    /// A row about a tool of the API.
    pub(super) fn row(&self, tool: &Value) -> Value {
        let name = tool["name"].as_str().unwrap_or_default();
        let offered = |offer: &Value| (offer["offered"] == true).then(|| offer["name"].clone());
        let agents: Vec<Value> = self.offers_of(name).iter().filter_map(offered).collect();
        json!({
            "name": name,
            "href": tool_href(name),
            "description": beginning_of(tool["description"].as_str().unwrap_or_default(), DESCRIPTION).0,
            "source": tool["source"],
            "status": tool["status"],
            "category": tool["category"],
            "consequence": tool["consequence"],
            "asks": tool["policy"]["asks"],
            "offered": tool["offered"],
            "message": tool["message"],
            "agents": agents,
        })
    }
}

/// The address of a tool's page.
pub(super) fn tool_href(name: &str) -> String {
    address(&["ui", "tools", name], &[])
}

/// Whether the definition of a tool has yet to be accepted.
pub(super) fn is_waiting(tool: &Value) -> bool {
    tool["reason"] == "not_accepted"
}

/// The rows of the tools that the filters of the page let through, in the order of their categories and names.
pub(super) fn shown_rows(list: &UiList, tools: &[Value], agents: &OfferingAgents) -> Vec<Value> {
    let is = |tool: &Value, name: &str| list.get(name).is_none_or(|wanted| tool[name] == wanted);
    let offered = list.get("offered").map(|word| word == "yes");
    let mut shown: Vec<&Value> = tools.iter().filter(|tool| is(tool, "category") && is(tool, "source")).collect();
    shown.retain(|tool| offered.is_none_or(|wanted| tool["offered"] == wanted));
    shown.retain(|tool| has_text(tool, &["name", "description"], list.get("q")));
    shown.sort_by_key(|tool| (place_of(&tool["category"]), tool["name"].as_str().unwrap_or_default().to_owned()));
    shown.into_iter().map(|tool| agents.row(tool)).collect()
}

/// The rows of each category: `[{category, tools}]`. They are in the order of their categories.
pub(super) fn groups(rows: &Value) -> Vec<Value> {
    let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    let of_one = rows.chunk_by(|one, next| one["category"] == next["category"]);
    of_one.map(|tools| json!({ "category": tools[0]["category"], "tools": tools })).collect()
}

/// The place of a category among the others.
fn place_of(category: &Value) -> usize {
    Category::WORDS.iter().position(|word| category == word).unwrap_or(Category::WORDS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, category: &str) -> Value {
        json!({ "name": name, "category": category, "description": "Long. ".repeat(100), "offered": true })
    }

    fn agents() -> OfferingAgents {
        let offer =
            |offered: bool| json!({ "name": "a.b", "offered": offered, "message": (!offered).then_some("denied") });
        OfferingAgents(vec![
            json!({ "name": "booker", "usable": true, "tools": [offer(true)] }),
            json!({ "name": "reader", "usable": true, "tools": [offer(false)] }),
            json!({ "name": "other", "usable": true, "tools": [] }),
        ])
    }

    #[test]
    fn row_names_the_agents_that_are_offered_the_tool_and_leads_to_its_page() {
        let row = agents().row(&tool("a.b", "read"));
        assert_eq!((&row["agents"], &row["href"]), (&json!(["booker"]), &json!("/ui/tools/a%2Eb")));
        assert_eq!(row["description"].as_str().unwrap().chars().count(), DESCRIPTION);
        let offers = agents().offers_of("a.b");
        assert_eq!(offers.len(), 2, "{offers:?}");
        assert_eq!(offers[1]["message"], "denied");
    }

    #[test]
    fn rows_are_grouped_by_category() {
        let rows = json!([tool("a", "read"), tool("b", "read"), tool("c", "delete")]);
        let groups = groups(&rows);
        assert_eq!(groups.len(), 2);
        assert_eq!((&groups[0]["category"], groups[0]["tools"].as_array().unwrap().len()), (&json!("read"), 2));
        assert!(place_of(&json!("read")) < place_of(&json!("delete")) && place_of(&json!("new")) > 5);
    }
}
