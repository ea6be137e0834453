//! Skills: what agents may use, what is wrong with them, and where they come from.

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use serde_json::{Value, json};

use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::{UiList, UiResult, Visit};
use crate::http::ui::operations::whole_list::{has_text, page_of};

/// Address of the list.
const HREF: &str = "/ui/skills";
/// Filters of the list, which are this page's own.
const FILTERS: [&str; 2] = ["q", "state"];

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_skills)).route("/ui/skills/{name}", get(show_skill))
}

async fn show_skills(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let answer = visit.get(&["v1", "skills"], &[]).await?;
    let skills = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown: Vec<Value> = skills.iter().map(row).filter(|row| is_shown(&list, row)).collect();
    let page = json!({ "skills": page_of(&list, HREF, visit.query("cursor"), shown) });
    visit.show("skills.html", "Skills", page).await
}

/// A row about a skill of the API, or about a folder that should be one.
fn row(skill: &Value) -> Value {
    let name = skill["name"].as_str().unwrap_or_default();
    let mut row = skill.clone();
    row["state"] = state_of(skill).into();
    row["files"] = skill["files"].as_array().map_or(0, Vec::len).into();
    if skill["usable"] == true {
        row["href"] = address(&["ui", "skills", name], &[]).into();
    }
    row
}

/// Whether the filters let a row through.
fn is_shown(list: &UiList, row: &Value) -> bool {
    let is_of_state = list.get("state").is_none_or(|state| row["state"] == state);
    is_of_state && has_text(row, &["name", "description"], list.get("q"))
}

/// How a skill stands: it can't be used, it can with oddities, or it is as it should be.
fn state_of(skill: &Value) -> &'static str {
    match (skill["usable"] == true, skill["findings"].as_array().is_some_and(|findings| !findings.is_empty())) {
        (false, _) => "unusable",
        (true, true) => "odd",
        (true, false) => "ready",
    }
}

async fn show_skill(Path(name): Path<String>, visit: Visit) -> UiResult {
    let mut skill = visit.get(&["v1", "skills", &name], &[]).await?;
    skill["state"] = state_of(&skill).into();
    visit.show("skill.html", name, json!({ "skill": skill })).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_leads_to_a_skill_that_can_be_used_and_says_how_it_stands() {
        let skill = json!({ "name": "flight-check", "usable": true, "files": ["a.md", "b.md"], "findings": [] });
        let shown = row(&skill);
        assert_eq!(shown["href"], "/ui/skills/flight-check");
        assert_eq!((&shown["files"], &shown["state"]), (&json!(2), &json!("ready")));
        let odd = json!({ "name": "a", "usable": true, "findings": ["its model is not there"] });
        assert_eq!(row(&odd)["state"], "odd");
        let unusable = json!({ "name": "/skills/b", "usable": false, "findings": ["no SKILL.md"] });
        assert_eq!((&row(&unusable)["state"], &row(&unusable)["href"]), (&json!("unusable"), &Value::Null));
    }
}
