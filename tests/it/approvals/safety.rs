//! Attacks on the page: decide from elsewhere, guess a link, hide what runs, keep or frame what it shows.

use serde_json::json;

use super::harness::{ask, fetch, fetch_from, note, note_of, post};
use crate::api::service::{Api, on_both};

on_both! {
    only_the_page_itself_can_decide
    page_shows_the_whole_call_and_nothing_of_it_is_markup
}

async fn only_the_page_itself_can_decide(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let other = ask(&api, "ann", vec![note()]).await;
    let nonce = asked.open(&api).await.hidden("nonce").unwrap();
    let foreign = other.open(&api).await.hidden("nonce").unwrap();
    let yes = |nonce: &str| vec![("nonce".to_owned(), nonce.to_owned()), ("do".to_owned(), "approve:0".to_owned())];
    for (nonce, headers) in [
        ("", &[][..]),
        ("0000", &[]),
        (foreign.as_str(), &[]),
        (nonce.as_str(), &[("origin", "https://evil.example.org")]),
        (nonce.as_str(), &[("origin", "null"), ("sec-fetch-site", "cross-site")]),
        (nonce.as_str(), &[("sec-fetch-site", "same-site")]),
        (nonce.as_str(), &[("origin", "http://127.0.0.1:7700"), ("sec-fetch-site", "cross-site")]),
    ] {
        let fields = yes(nonce);
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let refused = post(&api, &asked.path(), &fields, headers).await.expect(403);
        refused.shows("Nothing was decided: this answer did not come from the page as it is now.");
    }
    // JSON is no form
    let json = json!({ "nonce": nonce, "do": "approve:0" }).to_string();
    let request = axum::http::Request::post(asked.path()).header("content-type", "application/json");
    let reply = api.send(request.body(json.into()).unwrap()).await;
    assert_eq!(reply.status, 403);
    let form = axum::http::Request::post(asked.path()).header("content-type", "text/plain");
    let reply = api.send(form.body(format!("nonce={nonce}&do=approve%3A0").into()).unwrap()).await;
    assert_eq!(reply.status, 403);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    let ours = [("origin", "http://127.0.0.1:7700"), ("sec-fetch-site", "same-origin")];
    post(&api, &asked.path(), &[("nonce", &nonce), ("do", "approve:0")], &ours).await.expect(303);
}

async fn page_shows_the_whole_call_and_nothing_of_it_is_markup(api: Api) {
    let hostile = "</textarea></p><script>alert(1)</script>\"' onfocus=x &amp;";
    let long = "long ".repeat(2_000);
    let mut proposal = note_of(json!({
        "room": hostile, "text": "pay \u{202e}001\u{202c} now\u{7}\u{200b}", "long": long, "<b>": ["<i>", "\u{2066}"],
    }));
    proposal.summary = hostile.into();
    proposal.description = hostile.into();
    proposal.reasons = vec![hostile.into()];
    proposal.parameters =
        json!({ "type": "object", "properties": { "room": { "type": "string", "description": hostile } } });
    proposal.delegation_chain = vec![hostile.into()];
    proposal.confirmation = Some(hostile.into());
    let asked = ask(&api, "ann", vec![proposal]).await;
    let fields = [("do", "approve:0"), ("0.f1", hostile), ("0.comment", hostile), ("0.confirmation", hostile)];
    let pages = [
        asked.open(&api).await.expect(200),
        asked.send(&api, &[("do", "review"), ("0.f0", hostile), ("0.f1", hostile), ("0.f2", hostile)]).await,
        asked.send(&api, &fields).await,
    ];
    for page in &pages {
        assert!([200, 422].contains(&page.status));
        page.hides("<script");
        page.hides("<i>");
        page.hides("<b>");
        page.hides("' onfocus");
        page.shows("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39; onfocus=x &amp;amp;");
        for character in ['\u{202e}', '\u{202c}', '\u{200b}', '\u{2066}', '\u{7}'] {
            assert!(!page.html.contains(character), "{:x} is in the page", character as u32);
        }
        assert_eq!(page.html.matches("</textarea>").count(), page.html.matches("<textarea").count());
    }
    pages[0].shows("pay \u{27e6}U+202E\u{27e7}001\u{27e6}U+202C\u{27e7} now\u{2407}\u{27e6}U+200B\u{27e7}");
    pages[0].shows(long.trim_end());
}

#[tokio::test]
async fn every_page_is_kept_from_caches_frames_scripts_and_search() {
    let api = Api::new().await;
    let asked = ask(&api, "ann", vec![note()]).await;
    let pages = [
        asked.open(&api).await.expect(200),
        fetch(&api, "HEAD", &asked.path()).await.expect(200),
        fetch(&api, "GET", "/approvals/nothing").await.expect(404),
        fetch(&api, "GET", "/approvals/outcome/nothing").await.expect(404),
        post(&api, &asked.path(), &[("do", "approve:0")], &[]).await.expect(403),
        asked.send(&api, &[("do", "approve:0")]).await.expect(303),
        asked.open(&api).await.expect(200),
    ];
    for page in &pages {
        let policy = page.header("content-security-policy");
        let rest = policy.strip_prefix("default-src 'none'; style-src 'sha256-").expect("a policy");
        assert!(rest.ends_with("='; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"), "{policy}");
        assert_eq!(
            ["cache-control", "referrer-policy", "x-frame-options", "x-content-type-options", "x-robots-tag"]
                .map(|name| page.header(name)),
            ["no-store", "no-referrer", "DENY", "nosniff", "noindex, nofollow, noarchive"]
        );
        for outside in ["http://", "https://", "<script", " style=", "<img", "<iframe", "@import", "url("] {
            page.hides(outside);
        }
    }
    // the hash is that of the style as it stands in the page
    let style = pages[0].html.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, style.as_bytes());
    let hash = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, hash);
    assert!(pages[0].header("content-security-policy").contains(&format!("'sha256-{hash}'")));
}

#[tokio::test]
async fn guessing_links_costs_the_guesser_and_nobody_else() {
    let api = Api::new().await;
    let asked = ask(&api, "ann", vec![note()]).await;
    let (guesser, other) = ([192, 0, 2, 7], [192, 0, 2, 8]);
    fetch_from(&api, guesser, &asked.path()).await.expect(200);
    for n in 0..20 {
        fetch_from(&api, guesser, &format!("/approvals/guess{n}")).await.expect(404);
    }
    let refused = fetch_from(&api, guesser, "/approvals/guess").await.expect(429);
    assert_eq!(refused.header("retry-after"), "60");
    fetch_from(&api, guesser, &asked.path()).await.expect(200);
    fetch_from(&api, other, "/approvals/guess").await.expect(404);
    api.advance(60);
    fetch_from(&api, guesser, "/approvals/guess").await.expect(404);
}
