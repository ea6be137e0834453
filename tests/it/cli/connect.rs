//! Services that people can connect, from the command line: the link, and what `check` says of a provider.

use std::time::Duration;

use serde_json::Value;

use super::Shell;
use crate::support::binary::{Service, TempDir};
use crate::support::oauth::{CLIENT, OAuthServer, secret_of};

/// The operator's description of this provider.
fn section(token_url: &str, secret: &str) -> String {
    format!(
        "[oauth.calendar]\nauthorize_url = \"https://id.example.org/authorize\"\ntoken_url = \"{token_url}\"\n\
         client_id = \"{CLIENT}\"\nclient_secret = \"{secret}\"\nscopes = [\"openid\"]\nhosts = [\"api.example.org\"]\n"
    )
}

#[tokio::test]
async fn link_is_printed_for_the_owner_of_an_account() {
    let mut service = Service::new().with_config(&section("https://id.example.org/token", "canary-secret"));
    service.start().await;
    let shell = Shell::beside(&service);
    let said = shell.ok(&["credential", "connect", "calendar/work", "--tenant", "ann"]).await;
    assert!(said.starts_with("Open this in a browser, log in as the owner of the account, and agree:\nhttps://id.example.org/authorize?response_type=code&client_id=reveille&redirect_uri="), "{said}");
    assert!(!said.contains("canary"), "{said}");
    let link = shell.json(&["credential", "connect", "calendar", "--tenant", "ann"]).await;
    assert!(link["url"].as_str().unwrap().contains("code_challenge_method=S256&scope=openid"), "{link}");
    let nobody = shell.refused(&["credential", "connect", "calendar"]).await;
    assert!(nobody.contains("an admin token names the tenant"), "{nobody}");
    let unknown = shell.refused(&["credential", "connect", "mail", "--tenant", "ann"]).await;
    assert!(unknown.contains("there is no such service in [oauth.*]"), "{unknown}");
    // an account may be called like the command
    let link = shell.json(&["credential", "connect", "calendar/connect", "--tenant", "ann"]).await;
    assert!(link["url"].as_str().unwrap().starts_with("https://id.example.org/authorize?"), "{link}");
    let set = ["credential", "set", "calendar/connect", "--tenant", "ann", "--host", "api.example.org", "--inject"];
    let done = shell.fed(&[&set[..], &["bearer"]].concat(), "canary\n").await;
    assert_eq!(done.code, 0, "{}", done.err);
    let shown = shell.json(&["credential", "show", "calendar/connect", "--tenant", "ann"]).await;
    assert_eq!(shown["account_name"], "connect");
}

#[tokio::test]
async fn check_asks_the_provider_whether_it_knows_us_and_says_what_to_register() {
    let server = OAuthServer::start("https://reveille.example.org/oauth/callback", Duration::from_secs(600)).await;
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir).with("REVEILLE_SERVER__PUBLIC_URL", "https://reveille.example.org/");
    let look = async |token_url: &str, secret: &str| {
        std::fs::write(dir.path().join("reveille.toml"), section(token_url, secret)).unwrap();
        let done = shell.run(&["check", "--json"]).await;
        assert!(!done.out.contains(secret) && !done.err.contains(secret), "{}{}", done.out, done.err);
        let answer: Value = serde_json::from_str(&done.out).unwrap();
        let checks = answer["checks"].as_array().unwrap().clone();
        let found = checks.into_iter().find(|check| check["name"] == "oauth calendar").expect("a look at it");
        [&found["verdict"], &found["message"], &found["hint"]].map(|text| text.as_str().unwrap_or_default().to_owned())
    };
    let token_url = server.url("/token");
    let [verdict, message, hint] = look(&token_url, &secret_of(CLIENT)).await;
    assert_eq!((verdict.as_str(), message), ("fine", format!("{token_url} knows the client `reveille`")));
    assert_eq!(hint, "register https://reveille.example.org/oauth/callback there as the redirect URI of `reveille`");
    let [verdict, message, _] = look(&token_url, "canary-secret").await;
    assert_eq!(
        (verdict.as_str(), message),
        ("wrong", format!("{token_url} refuses the client `reveille`: invalid_client: client authentication failed"))
    );
    let [verdict, ..] = look(&server.url("/nowhere"), "canary-secret").await;
    assert_eq!(verdict, "odd");
    let [verdict, message, _] = look("http://127.0.0.1:1/token", "canary-secret").await;
    assert!(verdict == "wrong" && message.contains("can't be reached"), "{message}");
    assert_eq!(server.asked().await, 2);
}
