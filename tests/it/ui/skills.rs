//! The pages of skills: those that there are, what is wrong with them, and where they come from.

use std::time::Duration;

use reveille::base::clock::pause;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};

on_both! {
    skills_are_listed_with_what_is_wrong_and_the_operator_sees_where_they_come_from
    skill_is_shown_whole_and_its_words_are_text
}

/// How often the folders are looked for.
const LOOKS: usize = 1_000;

fn write(api: &Api, path: &str, text: &str) {
    let file = api.dir.path().join("skills").join(path);
    std::fs::create_dir_all(file.parent().expect("its folder")).expect("a folder");
    std::fs::write(file, text).expect("written");
}

/// Has the folders looked at until there are so many skills.
async fn until_there_are(api: &Api, count: usize) {
    api.advance(11);
    for _ in 0..LOOKS {
        let listed = api.admin("GET", "/v1/skills", None).await.expect(200);
        if listed["items"].as_array().expect("skills").len() == count {
            return;
        }
        pause(Duration::from_millis(10)).await;
    }
    panic!("there are not {count} skills");
}

const TRIP: &str = "---\nname: trip\ndescription: Plans trips.\nallowed-tools: current_time no_such_tool\n---\n\n\
                    Read <script>alert(1)</script> first.\n";

async fn skills_are_listed_with_what_is_wrong_and_the_operator_sees_where_they_come_from(api: Api) {
    let url = served(&api).await;
    let operator = Visitor::signed_in(&url, ADMIN).await;
    let none = operator.get("/ui/skills").await;
    none.has("There are no skills.");
    none.has("[skills] dir");
    write(&api, "trip/SKILL.md", TRIP);
    write(&api, "trip/references/table.md", "| a |\n");
    write(&api, "plain/SKILL.md", "---\nname: plain\ndescription: Does it.\n---\nDo it.");
    write(&api, "broken/SKILL.md", "no properties");
    until_there_are(&api, 3).await;
    let folder = api.dir.path().join("skills/trip").display().to_string();
    let all = operator.get("/ui/skills").await;
    for text in ["Plans trips.", "can’t be used", "no_such_tool", "href=\"/ui/skills/trip\""] {
        all.has(text);
    }
    all.has(&format!("<code>{folder}</code>"));
    let some = operator.get("/ui/skills?state=ready").await;
    some.has("/ui/skills/plain");
    some.lacks("/ui/skills/trip");

    let ann = Visitor::signed_in(&url, &api.token("ann", &["tasks:read"]).await).await;
    let of_ann = ann.get("/ui/skills").await;
    of_ann.has("Plans trips.");
    of_ann.lacks(&format!("<code>{folder}</code>"));
    ann.get("/ui/skills/trip").await.lacks(&folder);
    let blind = Visitor::signed_in(&url, &api.token("ann", &["runs:read"]).await).await;
    for page in ["/ui/skills", "/ui/skills/trip"] {
        assert_eq!(blind.get(page).await.status, 403, "{page}");
    }
}

async fn skill_is_shown_whole_and_its_words_are_text(api: Api) {
    write(&api, "trip/SKILL.md", TRIP);
    write(&api, "trip/references/table.md", "| a |\n");
    until_there_are(&api, 1).await;
    let whole = api.admin("GET", "/v1/skills/trip", None).await.expect(200);
    assert!(whole["instructions"].as_str().expect("a text").contains("alert(1)"), "{whole}");
    assert!(whole["folder"].as_str().expect("a folder").ends_with("skills/trip"), "{whole}");
    let token = api.token("ann", &["tasks:read"]).await;
    assert!(api.ask("GET", "/v1/skills/trip", Some(&token), None).await.expect(200).get("folder").is_none());
    api.admin("GET", "/v1/skills/other", None).await.expect(404);
    let url = served(&api).await;
    let ann = Visitor::signed_in(&url, &token).await;
    let trip = ann.get("/ui/skills/trip").await;
    for text in ["<h1>trip</h1>", "references/table.md", "&lt;script&gt;alert(1)", "no_such_tool"] {
        trip.has(text);
    }
    trip.lacks("<script>alert");
    assert_eq!(ann.get("/ui/skills/other").await.status, 404);
    assert_eq!(ann.get("/ui/skills/..%2F..%2Fsecret").await.status, 404);
}
