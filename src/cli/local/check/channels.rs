//! Looks at the ways to tell people: does each provider that is configured take our login? Nothing is sent to anybody.

use futures::future::join_all;

use super::Finding;
use crate::config::LoadedConfig;
use crate::ports::channel::email::EmailChannel;
use crate::ports::channel::{Account, Login, Settings};

pub async fn all(loaded: &LoadedConfig) -> Vec<Finding> {
    let accounts = join_all(loaded.config.channels.accounts().into_iter().map(account));
    let (email, accounts) = tokio::join!(email(loaded), accounts);
    email.into_iter().chain(accounts.into_iter().flatten()).collect()
}

/// A fault of the settings was told with those of their section.
async fn account(Account { channel, login, hint, .. }: Account<'_>) -> Option<Finding> {
    Some(finding(channel, login.await.ok()??, hint))
}

/// Whether somebody is told of anything by a link that they open elsewhere.
pub fn sends_links(channels: &Settings) -> bool {
    channels.email.url.is_some() || !other_accounts(channels).is_empty()
}

fn finding(name: &str, login: Login, hint: &str) -> Finding {
    match login {
        Login::Fine(what) => Finding::ok(name, what),
        Login::Odd(what) => Finding::warning(name, what),
        Login::Wrong(what) => Finding::error(name, what).hint(hint),
    }
}

async fn email(loaded: &LoadedConfig) -> Option<Finding> {
    let channels = &loaded.config.channels;
    Some(match EmailChannel::new(&channels.email).ok()? {
        None => {
            let others = match other_accounts(channels).as_slice() {
                [] => String::new(),
                others => format!("{}, ", others.join(", ")),
            };
            Finding::ok("email", format!("not configured; messages go by {others}push, webhook and open sessions"))
        }
        Some(email) => match email.check().await {
            Ok(()) => Finding::ok("email", "the mail server answers, and took the login where one is set"),
            Err(error) => Finding::error("email", error.to_string())
                .hint("channels.email.url is smtp://user:password@host:587, or smtps:// where TLS comes first"),
        },
    })
}

/// Configured channels besides email that need an account of the operator's.
fn other_accounts(channels: &Settings) -> Vec<&'static str> {
    channels.accounts().iter().filter(|account| account.is_there).map(|account| account.called).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_that_is_configured_counts() {
        let channels = |json| serde_json::from_value::<Settings>(json).unwrap();
        let none = Settings::default();
        assert_eq!((other_accounts(&none), sends_links(&none)), (vec![], false));
        let some = channels(serde_json::json!({ "telegram": { "token": "1:x" }, "sms": { "account": "AC1" } }));
        assert_eq!((other_accounts(&some), sends_links(&some)), (vec!["SMS", "Telegram"], true));
        assert!(sends_links(&channels(serde_json::json!({ "email": { "url": "smtp://127.0.0.1" } }))));
    }
}
