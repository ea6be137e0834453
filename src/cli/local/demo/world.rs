//! The world outside of the demo's service, played in this process over real sockets: an inbox, an outbox and Ann's
//! phone.

use std::convert::Infallible;
use std::net::SocketAddr;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::base::clock::machine_now;

/// Largest notification that is read, in bytes.
const LONGEST: usize = 64 * 1024;

/// A notification as it arrived.
#[derive(Debug)]
pub struct DemoArrival {
    pub at: DateTime<Utc>,
    /// The delivery's id, as in the header `webhook-id`.
    pub id: String,
    /// Whether it was signed with the secret that Ann and the service share.
    pub genuine: bool,
    pub body: Value,
}

/// The outside, which ends when this is dropped.
pub struct DemoWorld {
    address: SocketAddr,
    /// The secret for Ann's webhook, as Standard Webhooks writes it.
    pub secret: String,
    arrivals: mpsc::Receiver<DemoArrival>,
    server: JoinHandle<()>,
}

impl DemoWorld {
    pub async fn start() -> std::io::Result<DemoWorld> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut key = [0_u8; 32];
        aws_lc_rs::rand::fill(&mut key).map_err(std::io::Error::other)?;
        let (sender, arrivals) = mpsc::channel(16);
        let server = tokio::spawn(accept(listener, key, sender));
        Ok(DemoWorld { address, secret: format!("whsec_{}", STANDARD.encode(key)), arrivals, server })
    }

    pub fn inbox_url(&self) -> String {
        format!("http://{}/inbox", self.address)
    }

    /// Where mails to Mia are sent.
    pub fn outbox_url(&self) -> String {
        format!("http://{}/mails/mia", self.address)
    }

    pub fn phone_url(&self) -> String {
        format!("http://{}/phone", self.address)
    }

    /// As `[egress] allow` opens it: loopback is closed to tools and webhooks otherwise.
    pub fn egress_allow(&self) -> String {
        self.address.to_string()
    }

    /// The next notification on Ann's phone.
    pub async fn next_arrival(&mut self) -> Option<DemoArrival> {
        self.arrivals.recv().await
    }
}

impl Drop for DemoWorld {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, key: [u8; 32], arrivals: mpsc::Sender<DemoArrival>) {
    while let Ok((stream, _)) = listener.accept().await {
        let arrivals = arrivals.clone();
        let service = service_fn(move |request| {
            let arrivals = arrivals.clone();
            async move { Ok::<_, Infallible>(answer(request, &key, &arrivals).await) }
        });
        tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, key: &[u8; 32], arrivals: &mpsc::Sender<DemoArrival>) -> Response<String> {
    let (head, body) = request.into_parts();
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/inbox") => respond(StatusCode::OK, inbox().to_string()),
        (&Method::POST, "/mails/mia") => {
            respond(StatusCode::OK, json!({ "said": "She has your answer. " }).to_string())
        }
        (&Method::POST, "/phone") => match read_body(body).await {
            Some(bytes) => {
                let _ = arrivals.send(verify_arrival(&head.headers, &bytes, key)).await;
                respond(StatusCode::NO_CONTENT, String::new())
            }
            None => respond(StatusCode::PAYLOAD_TOO_LARGE, String::new()),
        },
        _ => respond(StatusCode::NOT_FOUND, String::new()),
    }
}

async fn read_body(mut body: Incoming) -> Option<Bytes> {
    use futures::future::poll_fn;
    use hyper::body::Body;
    let mut read = Vec::new();
    while let Some(frame) = poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame.ok()?.into_data() {
            read.extend_from_slice(&data);
        }
        if read.len() > LONGEST {
            return None;
        }
    }
    Some(read.into())
}

fn respond(status: StatusCode, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

fn inbox() -> Value {
    json!({
        "unread": 3,
        "mails": [
            { "from": "The railway", "subject": "ICE 599 at 10:28 leaves from platform 4, not 7" },
            { "from": "Mia", "subject": "Lunch on Thursday?" },
            { "from": "Shoes & More", "subject": "Last chance: 20 % off" }
        ]
    })
}

/// Reads a notification as the Standard Webhooks specification tells receivers to: the signature over the raw body.
fn verify_arrival(headers: &HeaderMap, body: &Bytes, key: &[u8; 32]) -> DemoArrival {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let id = header("webhook-id").to_owned();
    let signed = [format!("{id}.{}.", header("webhook-timestamp")).as_bytes(), body].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let genuine = header("webhook-signature").split(' ').any(|signature| {
        let tag = signature.strip_prefix("v1,").and_then(|tag| STANDARD.decode(tag).ok());
        tag.is_some_and(|tag| hmac::verify(&key, &signed, &tag).is_ok())
    });
    DemoArrival { at: machine_now(), id, genuine, body: serde_json::from_slice(body).unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_is_genuine_only_with_its_own_signature() {
        let (key, body) = ([7_u8; 32], Bytes::from_static(b"{\"type\":\"message\"}"));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &[b"d1.1795000000.", &body[..]].concat());
        let headers = |id: &'static str, signature: String| {
            HeaderMap::from_iter([
                ("webhook-id".parse().unwrap(), id.parse().unwrap()),
                ("webhook-timestamp".parse().unwrap(), "1795000000".parse().unwrap()),
                ("webhook-signature".parse().unwrap(), signature.parse().unwrap()),
            ])
        };
        let signature = format!("v1,AAAA v1,{}", STANDARD.encode(tag));
        assert!(verify_arrival(&headers("d1", signature.clone()), &body, &key).genuine);
        assert!(!verify_arrival(&headers("d2", signature.clone()), &body, &key).genuine);
        assert!(!verify_arrival(&headers("d1", signature), &Bytes::from_static(b"{}"), &key).genuine);
        assert!(!verify_arrival(&HeaderMap::new(), &body, &key).genuine);
    }
}
