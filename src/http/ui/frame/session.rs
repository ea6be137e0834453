//! Sessions: a cookie in a browser that stands for a token.
//!
//! The cookie holds a secret of 256 bits of chance, and the database its hash. Nobody guesses one, so those that are
//! wrong are not counted against their address. Each request looks the token up by its hash: a session ends with its
//! token at once, and whatever changes in the token goes for its sessions. A session that nobody uses ends: what a page
//! asks for by itself, while its stream tells of news, is no use of it.

use std::time::Duration;

use axum::http::header::{ACCEPT, COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use chrono::{DateTime, TimeDelta, Utc};
use url::form_urlencoded::byte_serialize;

use crate::base::clock;
use crate::base::token::{TokenHash, bearer_secret, is_bearer_secret};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::AuthenticatedCaller;
use crate::http::request::auth::caller_of;
use crate::http::server::Peer;
use crate::store::{StoreError, UiSession};

/// Name of the cookie.
const NAME: &str = "reveille_session";
/// Purpose of the text that forms carry among the tags of the vault.
const FORM: &str = "dashboard-form";
/// How long a session goes on without a request.
const IDLE: TimeDelta = TimeDelta::hours(1);
/// How long a session lasts, however busy it is.
const LASTS: TimeDelta = TimeDelta::hours(12);
/// How often requests of a session are noted.
const NOTED_EVERY: TimeDelta = TimeDelta::minutes(1);
/// The first page.
pub const HOME: &str = "/ui";
/// The page on which one signs in.
pub const LOGIN: &str = "/ui/login";
/// The use of a request, as browsers say it.
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Marks a request that a page makes by itself, as the script sends it.
const BY_ITSELF: HeaderName = HeaderName::from_static("x-reveille-live");
/// The media type of streams, which pages open by themselves.
const EVENT_STREAM: &[u8] = b"text/event-stream";
/// How often it is looked whether a session has ended that a stream belongs to.
const LOOK: Duration = Duration::from_secs(2);

/// A signed-in person.
#[derive(Clone)]
pub struct DashboardSession {
    /// As their token has it.
    pub caller: AuthenticatedCaller,
    /// The text that each form of the session carries.
    pub form_token: String,
    hash: TokenHash,
}

/// The session of a request's cookie, if it is good and its token is.
pub async fn signed_in(parts: &Parts, state: &HttpState) -> Result<Option<DashboardSession>, ApiError> {
    let Some(hash) = shown_hash(&parts.headers) else { return Ok(None) };
    let Some(stored) = state.store.find_ui_session(hash.as_bytes()).await? else { return Ok(None) };
    let now = state.clock.now();
    let Some(token) = TokenHash::stored(&stored.token_hash).filter(|_| is_open(&stored, now)) else { return Ok(None) };
    let address = parts.extensions.get::<Peer>().map(|peer| peer.0);
    let caller = match caller_of(state, &token, address).await {
        Ok(caller) => caller,
        Err(ApiError::Unauthorized(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    if is_by_person(&parts.headers) {
        note_request(state, &hash, &stored, now).await;
    }
    let form_token = state.vault.tag(FORM, &hex::encode(hash.as_bytes()));
    Ok(Some(DashboardSession { caller, form_token, hash }))
}

impl DashboardSession {
    /// Whether nobody has ended the session by now, and its time is not over.
    ///
    /// # Errors
    /// The database is away.
    pub async fn is_still_open(&self, state: &HttpState) -> Result<bool, StoreError> {
        let stored = state.store.find_ui_session(self.hash.as_bytes()).await?;
        Ok(stored.is_some_and(|stored| is_open(&stored, state.clock.now())))
    }

    /// Ends soon after the session has: for streams.
    pub async fn ended(self, state: HttpState) {
        loop {
            clock::pause(LOOK).await;
            match self.is_still_open(&state).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%error, "can't ask for the session of who follows a stream"),
            }
        }
    }
}

/// Address of the page on which one signs in; of a page that is read, it leads back to it.
pub fn login_href(parts: &Parts) -> String {
    let asked = parts.uri.path_and_query().map_or("", |asked| asked.as_str());
    // a part that a script asks for is no page to come back to
    let is_page = parts.headers.get(FETCH_MODE).is_none_or(|mode| mode.as_bytes() == b"navigate");
    match parts.method == Method::GET && is_page && asked != HOME && is_own_page(asked) {
        true => format!("{LOGIN}?next={}", byte_serialize(asked.as_bytes()).collect::<String>()),
        false => LOGIN.to_owned(),
    }
}

/// Whether it is the text that forms of the session carry.
pub fn is_form_token(session: &DashboardSession, token: &str) -> bool {
    // hashes are compared in constant time
    TokenHash::of(token) == TokenHash::of(&session.form_token)
}

/// Whether an address is one of a page of the dashboard behind its login: a path of ours, and no other site's.
pub fn is_own_page(address: &str) -> bool {
    let path = address.split('?').next().unwrap_or_default();
    let is_below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_plain = address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    // browsers read `%2e` as a dot where a segment has nothing but dots
    let leads_up = path.split('/').any(|segment| segment.to_ascii_lowercase().replace("%2e", ".") == "..");
    is_plain && !path.contains("//") && !path.contains("..") && !leads_up && is_below(HOME) && !is_below(LOGIN)
}

/// Begins a session of a token, and answers its cookie. It ends with the token at the latest.
///
/// # Errors
/// The database is away.
pub async fn begin(state: &HttpState, caller: &AuthenticatedCaller) -> Result<HeaderValue, ApiError> {
    let (secret, now) = (bearer_secret(), state.clock.now());
    let longest = now + LASTS;
    let session = UiSession {
        token_hash: caller.hash().as_bytes().to_vec(),
        created_at: now,
        seen_at: now,
        ends_at: caller.expires_at.map_or(longest, |end| end.min(longest)),
    };
    state.store.open_ui_session(TokenHash::of(&secret).as_bytes(), &session).await?;
    cookie(&secret, "", &state.settings.public_url())
}

/// Ends the session of the cookie that a browser shows, if there is one: it is about to have another.
///
/// # Errors
/// The database is away.
pub async fn end_shown(state: &HttpState, headers: &HeaderMap) -> Result<(), ApiError> {
    match shown_hash(headers) {
        Some(hash) => Ok(state.store.end_ui_session(hash.as_bytes()).await?),
        None => Ok(()),
    }
}

/// Ends a session, and answers what takes the cookie away.
///
/// # Errors
/// The database is away.
pub async fn end(state: &HttpState, session: &DashboardSession) -> Result<HeaderValue, ApiError> {
    state.store.end_ui_session(session.hash.as_bytes()).await?;
    cookie("", "; Max-Age=0", &state.settings.public_url())
}

fn is_open(stored: &UiSession, now: DateTime<Utc>) -> bool {
    now < stored.ends_at && now < stored.seen_at + IDLE
}

/// Whether a person has asked for it, and not a page by itself.
fn is_by_person(headers: &HeaderMap) -> bool {
    let is_stream = headers.get(ACCEPT).is_some_and(|kind| kind.as_bytes() == EVENT_STREAM);
    !is_stream && !headers.contains_key(BY_ITSELF)
}

/// Notes that a session is in use. A page is shown all the same where that fails; the next request notes it again.
async fn note_request(state: &HttpState, hash: &TokenHash, stored: &UiSession, now: DateTime<Utc>) {
    if now - stored.seen_at < NOTED_EVERY {
        return;
    }
    if let Err(error) = state.store.touch_ui_session(hash.as_bytes(), now).await {
        tracing::warn!(%error, "a request of a session of the dashboard was not noted");
    }
}

/// The hash of the secret in a request's cookie.
fn shown_hash(headers: &HeaderMap) -> Option<TokenHash> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, secret) = pairs.find(|(name, secret)| *name == NAME && is_bearer_secret(secret))?;
    Some(TokenHash::of(secret))
}

/// The cookie: for the dashboard alone, for no script, and with no request that another site has begun.
fn cookie(secret: &str, more: &str, public_url: &str) -> Result<HeaderValue, ApiError> {
    let secure = if public_url.starts_with("https:") { "; Secure" } else { "" };
    let cookie = format!("{NAME}={secret}; Path={HOME}; HttpOnly; SameSite=Strict{secure}{more}");
    let mut cookie =
        HeaderValue::try_from(cookie).map_err(|_| ApiError::Internal { log: "a cookie is no header".into() })?;
    cookie.set_sensitive(true);
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn shown(lines: &[&str]) -> Option<TokenHash> {
        shown_hash(&lines.iter().map(|line| (COOKIE, line.parse().unwrap())).collect())
    }

    #[test]
    fn cookie_is_found_among_others_and_only_in_its_form() {
        let secret = "a".repeat(43);
        let hash = Some(TokenHash::of(&secret));
        let own = format!("{NAME}={secret}");
        assert_eq!(shown(&[&own]), hash);
        assert_eq!(shown(&["theme=dark; lang=en", &format!("a=b; {own}; c")]), hash);
        assert_eq!(shown(&[&format!("{NAME}=x; {own}")]), hash, "one that is no secret is passed over");
        for odd in ["", "=", NAME, &format!("{NAME}="), &format!("{NAME}={secret}a"), &format!("x{own}")] {
            assert_eq!(shown(&[odd]), None, "{odd}");
        }
    }

    #[test]
    fn cookie_is_for_the_dashboard_alone_and_secure_over_tls() {
        let text = |public_url: &str| cookie("s", "", public_url).unwrap().to_str().unwrap().to_owned();
        assert_eq!(text("http://127.0.0.1:7700"), "reveille_session=s; Path=/ui; HttpOnly; SameSite=Strict");
        assert_eq!(text("https://wake.example.org"), "reveille_session=s; Path=/ui; HttpOnly; SameSite=Strict; Secure");
        let gone = cookie("", "; Max-Age=0", "http://localhost").unwrap();
        assert_eq!(gone, "reveille_session=; Path=/ui; HttpOnly; SameSite=Strict; Max-Age=0");
        assert!(gone.is_sensitive());
    }

    #[test]
    fn request_of_a_page_by_itself_is_no_use_of_its_session() {
        let is_use = |name: HeaderName, value: &'static str| {
            is_by_person(&HeaderMap::from_iter([(name, HeaderValue::from_static(value))]))
        };
        assert!(is_use(ACCEPT, "text/html") && is_use(FETCH_MODE, "cors"));
        assert!(!is_use(ACCEPT, "text/event-stream") && !is_use(BY_ITSELF, "1"));
    }

    #[test]
    fn only_pages_of_our_own_are_led_to() {
        for own in ["/ui", "/ui?done=saved", "/ui/tools/a%2Eb", "/ui/runs?q=https://x//y&state=failed", "/ui/loginx"] {
            assert!(is_own_page(own), "{own}");
        }
        for foreign in [
            "",
            "/",
            "ui",
            "/uix",
            "/v1/tasks",
            "//evil.example.org/ui",
            "https://evil.example.org/ui",
            "/ui//evil.example.org",
            "/ui/../v1/tasks",
            "/ui/%2e%2E/v1/tasks",
            "/ui/.%2e/v1/tasks",
            "/ui\\evil",
            "/ui/a b",
            "/ui/a\r\nSet-Cookie: a=b",
            "/ui/é",
            "/ui/login",
            "/ui/login?next=/ui",
            "/ui/login/code",
        ] {
            assert!(!is_own_page(foreign), "{foreign}");
        }
    }

    #[test]
    fn page_that_is_read_is_come_back_to_and_nothing_else() {
        let href = |method: &str, uri: &str, mode: Option<&str>| {
            let mut request = Request::builder().method(method).uri(uri);
            if let Some(mode) = mode {
                request = request.header(FETCH_MODE, mode);
            }
            login_href(&request.body(()).unwrap().into_parts().0)
        };
        assert_eq!(href("GET", "/ui", None), LOGIN);
        assert_eq!(
            href("GET", "/ui/runs?state=failed&q=a%26b", None),
            format!("{LOGIN}?next=%2Fui%2Fruns%3Fstate%3Dfailed%26q%3Da%2526b")
        );
        assert_eq!(href("GET", "/ui/runs", Some("navigate")), format!("{LOGIN}?next=%2Fui%2Fruns"));
        assert_eq!(href("GET", "/ui/runs/1/rows", Some("cors")), LOGIN);
        assert_eq!(href("POST", "/ui/runs/1/retry", None), LOGIN);
        assert_eq!(href("GET", "/ui//evil.example.org", None), LOGIN);
    }
}
