//! Credentials in use: put into requests, taken out of what comes back, and never seen anywhere else.

mod binary;
mod canary;
mod declared;
mod door;
mod missing_credential;
mod tasks;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::credential::{OAuth, Reference};
use reveille::ports::vault::Context;
use reveille::store::{CredentialRowDraft, SealedDocument, StoredCredential, next_generation};
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use crate::support::app::Instance;
use crate::support::world::World;

/// Saves a credential of ann's for this machine, in the place of the one that is there.
async fn save(world: &World, instance: &Instance, name: &str, inject: Value, document: Value) -> StoredCredential {
    save_for(world, instance, name, json!({ "hosts": ["127.0.0.1"], "inject": inject }), document).await
}

async fn save_for(world: &World, instance: &Instance, name: &str, more: Value, document: Value) -> StoredCredential {
    let reference = Reference::parse(name).expect("a reference");
    let Reference { service, account } = reference.clone();
    let stored = instance
        .on(|store| async move { store.get_credential(&Scope::Every, "ann", &service, &account).await })
        .await
        .ok();
    let generation = next_generation(stored.as_ref(), world.clock.now());
    let field = format!("document/{generation}");
    let context = Context { tenant: "ann", service: &reference.service, account: &reference.account, field: &field };
    let vault = world.vault();
    let sealed = vault.seal(&context, &Secret::new(document.to_string())).expect("sealed");
    let oauth: Option<OAuth> = more.get("oauth").map(|oauth| serde_json::from_value(oauth.clone()).expect("oauth"));
    let new = CredentialRowDraft {
        tenant_id: "ann".into(),
        service: reference.service,
        account_name: reference.account,
        hosts: serde_json::from_value(more["hosts"].clone()).expect("hosts"),
        inject: serde_json::from_value(more["inject"].clone()).expect("an injection"),
        oauth,
        document: Some(SealedDocument { sealed, generation, key_id: "k".into(), expires_at: None }),
        by: "token:t".into(),
    };
    let read = stored.map_or(0, |stored| stored.credential.version);
    let put = instance.on(move |store| async move { store.put_credential(&Scope::Every, &new, read).await }).await;
    put.expect("a credential").stored
}

/// A text in every encoding in which a server may send it back.
fn encodings(secret: &str) -> Vec<String> {
    let json = serde_json::to_string(secret).unwrap();
    let form: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
    let percent = |text: &str| -> String { text.bytes().map(|byte| format!("%{byte:02x}")).collect() };
    let html = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let mut all = vec![
        secret.to_owned(),
        json[1..json.len() - 1].to_owned(),
        percent(secret),
        percent(secret).to_uppercase(),
        form,
        html,
        secret.chars().map(|c| format!("&#{};", c as u32)).collect(),
        secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect(),
        hex::encode(secret),
        hex::encode_upper(secret),
    ];
    for before in ["", "x", "xy"] {
        let text = format!("{before}{secret}");
        all.extend([STANDARD.encode(&text), STANDARD_NO_PAD.encode(&text)]);
        all.extend([URL_SAFE.encode(&text), URL_SAFE_NO_PAD.encode(&text)]);
    }
    all
}

/// The encodings of a secret that stand in a text. Of base64 behind other bytes the secret's own characters are looked
/// for.
fn traces(secret: &str, text: &[u8]) -> Vec<String> {
    // the secrets are ASCII, so nothing of them goes with bytes that are no text
    let text = String::from_utf8_lossy(text);
    // what stands in JSON within JSON has its backslashes doubled, once for each
    let once = text.replace("\\\\", "\\");
    let twice = once.replace("\\\\", "\\");
    let found = |needle: &str| needle.len() >= 4 && [&*text, &once, &twice].iter().any(|text| text.contains(needle));
    let base64 = [1, 2].into_iter().flat_map(|before| {
        let text = [&b"xyz"[..before], secret.trim().as_bytes()].concat();
        let own = (before * 8).div_ceil(6)..text.len() * 8 / 6;
        [STANDARD_NO_PAD.encode(&text)[own.clone()].to_owned(), URL_SAFE_NO_PAD.encode(&text)[own].to_owned()]
    });
    let plain = encodings(secret.trim()).into_iter().take(12);
    plain.chain(base64).filter(|needle| found(needle)).collect()
}

/// Sends back all that it was sent, in every encoding: `/fail`, `/refuse` and `/odd` with another status, `/moved`
/// after a redirect that names it, `/leave` and `/carry` with a redirect to `elsewhere`, the latter naming it.
struct Echo {
    elsewhere: String,
}

impl Respond for Echo {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let sent = sent(request);
        let form: String = url::form_urlencoded::byte_serialize(sent.as_bytes()).collect();
        let seen = json!({ "status": "ok", "sent": sent, "echo": encodings(&sent) });
        let echo = |status| {
            let plain = sent.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            let raw = if plain { sent.clone() } else { String::new() };
            ResponseTemplate::new(status)
                .insert_header("X-Echo", raw.as_str())
                .insert_header("X-Form", form.as_str())
                .insert_header("X-Hex", hex::encode(&sent).as_str())
                .insert_header("ETag", format!("\"{}\"", STANDARD.encode(&sent)).as_str())
                .set_body_json(&seen)
        };
        let moved = |status, to: String| ResponseTemplate::new(status).insert_header("Location", to.as_str());
        match request.url.path() {
            "/fail" => echo(500),
            "/refuse" => echo(403),
            "/odd" => echo(404),
            "/moved" => moved(307, format!("/echo?was={form}")),
            "/leave" => moved(302, format!("{}/echo", self.elsewhere)),
            "/carry" => moved(302, format!("{}/echo?stolen={form}", self.elsewhere)),
            "/hook" => ResponseTemplate::new(200).set_body_json(json!({ "output": seen.to_string() })),
            _ => echo(200),
        }
    }
}

/// The credential that a request carries, wherever it is.
fn sent(request: &Request) -> String {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let parameter = request.url.query_pairs().find(|(name, _)| name == "key").map(|(_, value)| value.into_owned());
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let field = body.get("key").and_then(Value::as_str).map(str::to_owned);
    let bearer = header("authorization").map(|value| value.replace("Bearer ", ""));
    bearer.or(header("x-key")).or(parameter).or(field).unwrap_or_default()
}

async fn echo(elsewhere: &str) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(Echo { elsewhere: elsewhere.into() }).mount(&server).await;
    server
}

async fn received(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.expect("requests are kept")
}

fn open(mut world: World) -> World {
    world.egress.allow.push("127.0.0.1:*".into());
    world.poll.per_host_per_second = 1000.0;
    let email = json!({ "url": "smtp://127.0.0.1:9", "from": "reveille@example.org" });
    world.channels = serde_json::from_value(json!({ "email": email })).expect("channels");
    world
}
