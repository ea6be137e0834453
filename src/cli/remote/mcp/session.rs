//! The session of a host: its lines go to the service, several at a time, and each answer comes back as a line.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Context;
use futures::future::{AbortHandle, LocalBoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::cli::remote::mcp::failure_line::{line_of, unreadable_line};
use crate::cli::remote::mcp::headers::headers;
use crate::cli::remote::mcp::host_lines::{HostLine, HostLines};
use crate::cli::remote::mcp::host_message::HostMessage;
use crate::cli::{Client, RawAnswer};

/// Longest line of a host, in bytes: as long as a body that the service takes.
const LINE_BYTES: usize = 1_024 * 1_024;
/// Messages that are under way at once. As many more are read, so that one of them can be taken back; then no line is
/// read until one of these is answered.
const AT_ONCE: usize = 16;
/// How long answers are waited for once the host has nothing more to say.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Where the service answers messages.
const PLACE: [&str; 1] = ["mcp"];

/// The session of one host. All that is remembered of it is what is under way, and the version that was agreed on.
pub struct StdioSession<'a, W> {
    client: &'a Client,
    output: W,
    /// The version that `initialize` was answered with.
    agreed: Option<String>,
    waiting: VecDeque<HostMessage>,
    under_way: Vec<SentMessage>,
    calls: FuturesUnordered<LocalBoxFuture<'a, CallEnd>>,
    /// Messages that were sent so far.
    sent: u64,
}

/// A message that is under way.
struct SentMessage {
    number: u64,
    id: Option<Value>,
    is_notification: bool,
    is_initialize: bool,
    stop: AbortHandle,
}

/// The end of a message's way.
struct CallEnd {
    number: u64,
    /// `None`: it was taken back.
    answered: Option<anyhow::Result<RawAnswer>>,
}

impl<'a, W: AsyncWrite + Unpin> StdioSession<'a, W> {
    /// A session whose answers are written to `output`.
    pub fn new(client: &'a Client, output: W) -> StdioSession<'a, W> {
        StdioSession {
            client,
            output,
            agreed: None,
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            calls: FuturesUnordered::new(),
            sent: 0,
        }
    }

    /// Serves until the input ends; then what is under way has five seconds.
    ///
    /// # Errors
    /// The input can't be read, or the output can't be written.
    pub async fn serve(mut self, input: impl AsyncBufRead + Unpin) -> anyhow::Result<()> {
        let mut lines = HostLines::new(input, LINE_BYTES);
        loop {
            // one that waits waits for one that is under way
            let may_read = self.waiting.len() < AT_ONCE;
            tokio::select! {
                Some(ended) = self.calls.next(), if !self.calls.is_empty() => self.tell(ended).await?,
                line = lines.next(), if may_read => match line.context("read standard input")? {
                    Some(line) => self.take(line).await?,
                    None => break,
                },
            }
            self.send_waiting();
        }
        timeout(LAST_ANSWERS, self.finish()).await.unwrap_or(Ok(()))
    }

    async fn finish(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.calls.next().await {
            self.tell(ended).await?;
            self.send_waiting();
        }
        Ok(())
    }

    /// Takes a line: a message to be sent, or a notice that one is taken back.
    async fn take(&mut self, line: HostLine) -> anyhow::Result<()> {
        let HostLine::Whole(line) = line else {
            let why = format!("the line is longer than {LINE_BYTES} bytes; send less at once");
            return self.write(&unreadable_line(&why)).await;
        };
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let Some(message) = HostMessage::read(line) else {
            return self.write(&unreadable_line("the line is no JSON in UTF-8")).await;
        };
        if let Some(id) = message.takes_back() {
            self.take_back(id);
        } else if message.is_answer() {
            eprintln!("warning: the host has answered, though it was asked nothing");
        } else {
            self.waiting.push_back(message);
        }
        Ok(())
    }

    /// Nothing is written for this request any more.
    fn take_back(&mut self, id: &Value) {
        self.waiting.retain(|message| message.id() != Some(id));
        self.under_way.iter().filter(|sent| sent.id.as_ref() == Some(id)).for_each(|sent| sent.stop.abort());
    }

    /// Sends what waits, as far as there is room.
    fn send_waiting(&mut self) {
        while self.calls.len() < AT_ONCE
            && let Some(message) = self.waiting.pop_front()
        {
            self.send(message);
        }
    }

    fn send(&mut self, message: HostMessage) {
        let (client, number) = (self.client, self.sent);
        let (id, is_notification) = (message.id().cloned(), message.is_notification());
        let is_initialize = message.method() == "initialize";
        let headers = headers(&message, self.agreed.as_deref());
        let text = message.into_text();
        let (call, stop) = abortable(async move { client.post_message(&PLACE, &headers, text).await });
        self.sent += 1;
        self.under_way.push(SentMessage { number, id, is_notification, is_initialize, stop });
        self.calls.push(async move { CallEnd { number, answered: call.await.ok() } }.boxed_local());
    }

    /// Writes the answer to a message, where it has one.
    async fn tell(&mut self, ended: CallEnd) -> anyhow::Result<()> {
        let Some(place) = self.under_way.iter().position(|sent| sent.number == ended.number) else { return Ok(()) };
        let sent = self.under_way.swap_remove(place);
        let Some(answered) = ended.answered else { return Ok(()) };
        if sent.is_notification {
            if let Err(error) = answered {
                eprintln!("warning: a notification was not delivered: {error:#}");
            }
            return Ok(());
        }
        if let (true, Ok(answer)) = (sent.is_initialize, &answered) {
            self.agreed = agreed_version(answer);
        }
        self.write(&line_of(answered, self.client, sent.id.as_ref())).await
    }

    async fn write(&mut self, line: &str) -> anyhow::Result<()> {
        self.output.write_all(format!("{line}\n").as_bytes()).await.context("write an answer")?;
        self.output.flush().await.context("write an answer")
    }
}

/// The version that an answer to `initialize` names.
fn agreed_version(answer: &RawAnswer) -> Option<String> {
    let message: Value = serde_json::from_slice(&answer.body).ok()?;
    message.pointer("/result/protocolVersion")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, DuplexStream, Lines, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{mpsc, oneshot};

    use super::*;
    use crate::base::secret::Secret;

    /// Long enough for all that is on its way to arrive.
    const QUIET: Duration = Duration::from_millis(200);

    /// A request that has arrived at the service.
    struct Arrived {
        head: String,
        body: Value,
        answer: oneshot::Sender<String>,
    }

    impl Arrived {
        fn id(&self) -> u64 {
            self.body["id"].as_u64().unwrap()
        }

        fn answer(self, result: Value) {
            let body = json!({ "jsonrpc": "2.0", "id": self.body["id"], "result": result }).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}", body.len());
            self.answer.send(format!("{head}\r\n\r\n{body}")).unwrap();
        }
    }

    /// A service whose answers are given by the test.
    struct FakeService {
        client: Client,
        arrived: mpsc::UnboundedReceiver<Arrived>,
    }

    impl FakeService {
        async fn start() -> FakeService {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let (arrives, arrived) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(answer_one(socket, arrives.clone()));
                }
            });
            FakeService { client: Client::to(&url, Some(Secret::new("a token"))).unwrap(), arrived }
        }

        async fn next(arrived: &mut mpsc::UnboundedReceiver<Arrived>) -> Arrived {
            timeout(Duration::from_secs(30), arrived.recv()).await.expect("a request").unwrap()
        }

        async fn is_quiet(arrived: &mut mpsc::UnboundedReceiver<Arrived>) -> bool {
            timeout(QUIET, arrived.recv()).await.is_err()
        }
    }

    async fn answer_one(mut socket: TcpStream, arrives: mpsc::UnboundedSender<Arrived>) {
        let mut read = Vec::new();
        let request = loop {
            if socket.read_buf(&mut read).await.unwrap() == 0 {
                return;
            }
            let text = String::from_utf8(read.clone()).unwrap();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str(body)
            {
                break (head.to_owned(), body);
            }
        };
        let (answer, answered) = oneshot::channel();
        let (head, body) = request;
        arrives.send(Arrived { head, body, answer }).unwrap();
        if let Ok(text) = answered.await {
            // the host may have taken its request back
            let _ = socket.write_all(text.as_bytes()).await;
        }
    }

    /// The host's ends of its program's input and output.
    struct FakeHost {
        input: DuplexStream,
        output: Lines<BufReader<DuplexStream>>,
    }

    impl FakeHost {
        async fn say(&mut self, line: Value) {
            self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        }

        async fn ask(&mut self, id: u64, method: &str) {
            self.say(json!({ "jsonrpc": "2.0", "id": id, "method": method })).await;
        }

        async fn take_back(&mut self, id: u64) {
            let params = json!({ "requestId": id });
            self.say(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })).await;
        }

        async fn hear(&mut self) -> Value {
            serde_json::from_str(&self.output.next_line().await.unwrap().expect("a line")).unwrap()
        }

        /// Says nothing more; the lines that come then.
        async fn end(self) -> Vec<String> {
            drop(self.input);
            let (mut output, mut heard) = (self.output, Vec::new());
            while let Some(line) = output.next_line().await.unwrap() {
                heard.push(line);
            }
            heard
        }
    }

    /// Plays a host's part against a session with the service.
    async fn play<F>(client: &Client, part: impl FnOnce(FakeHost) -> F)
    where
        F: Future<Output = ()>,
    {
        let ((input, reads), (writes, output)) = (duplex(64 * 1_024), duplex(64 * 1_024));
        let host = FakeHost { input, output: BufReader::new(output).lines() };
        let (served, ()) =
            tokio::join!(StdioSession::new(client, writes).serve(BufReader::new(reads)), Box::pin(part(host)));
        served.unwrap();
    }

    #[tokio::test]
    async fn messages_beyond_those_at_once_wait_for_one_of_these() {
        let FakeService { client, mut arrived } = FakeService::start().await;
        play(&client, |mut host| async move {
            let last = AT_ONCE as u64;
            for id in 0..=last + 1 {
                host.ask(id, "tools/list").await;
            }
            let mut under_way = Vec::new();
            for _ in 0..AT_ONCE {
                under_way.push(FakeService::next(&mut arrived).await);
            }
            assert!(FakeService::is_quiet(&mut arrived).await);
            // one that waits can be taken back all the same
            host.take_back(last + 1).await;
            under_way.remove(0).answer(json!({}));
            host.hear().await;
            let next = FakeService::next(&mut arrived).await;
            assert_eq!(next.id(), last);
            under_way.remove(0).answer(json!({}));
            host.hear().await;
            assert!(FakeService::is_quiet(&mut arrived).await);
            under_way.push(next);
            let count = under_way.len();
            under_way.into_iter().for_each(|call| call.answer(json!({})));
            assert_eq!(host.end().await.len(), count, "what is under way at the end is answered");
        })
        .await;
    }

    #[tokio::test]
    async fn request_that_is_taken_back_and_a_notification_have_no_answer() {
        let FakeService { client, mut arrived } = FakeService::start().await;
        play(&client, |mut host| async move {
            host.ask(1, "tools/list").await;
            let first = FakeService::next(&mut arrived).await;
            host.take_back(1).await;
            host.say(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
            let notice = FakeService::next(&mut arrived).await;
            assert_eq!(notice.body["method"], "notifications/initialized");
            notice.answer(json!({}));
            host.say(json!({ "jsonrpc": "2.0", "id": 7, "result": {} })).await;
            host.ask(2, "tools/list").await;
            FakeService::next(&mut arrived).await.answer(json!({ "tools": [] }));
            assert_eq!(host.hear().await, json!({ "jsonrpc": "2.0", "id": 2, "result": { "tools": [] } }));
            assert_eq!(host.end().await, Vec::<String>::new());
            drop(first);
        })
        .await;
    }

    #[tokio::test]
    async fn version_that_was_agreed_on_is_in_the_headers_of_what_follows() {
        let FakeService { client, mut arrived } = FakeService::start().await;
        play(&client, |mut host| async move {
            host.ask(1, "initialize").await;
            let first = FakeService::next(&mut arrived).await;
            assert!(first.head.starts_with("POST /mcp HTTP/1.1\r\n"), "{}", first.head);
            assert!(first.head.contains("\r\nauthorization: Bearer a token"), "{}", first.head);
            assert!(!first.head.contains("mcp-protocol-version"), "{}", first.head);
            first.answer(json!({ "protocolVersion": "2025-06-18" }));
            host.hear().await;
            host.ask(2, "tools/list").await;
            let second = FakeService::next(&mut arrived).await;
            assert!(second.head.contains("\r\nmcp-protocol-version: 2025-06-18"), "{}", second.head);
            second.answer(json!({}));
            host.hear().await;
            assert!(host.end().await.is_empty());
        })
        .await;
    }
}
