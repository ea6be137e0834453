//! A wire that can fail: a TCP proxy that cuts connections, swallows bytes without a word, or loses the answer to what
//! the server has committed: a `COMMIT`, or a statement that is its own transaction.
//!
//! It knows just enough of PostgreSQL's protocol for that last fault: what a simple and a prepared statement look like,
//! and how an answer ends. To any other server it passes bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The longest message that is looked into: a `COMMIT` is short.
const SHORT: usize = 64;

/// States of a connection: something, or nothing outside of a transaction; or that whose answer is to be lost.
const BUSY: u8 = 0;
const IDLE: u8 = 1;
const LOSES_COMMIT: u8 = 2;
const LOSES_STATEMENT: u8 = 3;
/// With it an answer of PostgreSQL ends, but for one byte: `I` outside of a transaction.
const READY: &[u8; 5] = b"Z\0\0\0\x05";

/// How the wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Whole,
    /// Every connection is closed, new ones at once.
    Cut,
    /// Connections stay, and nothing comes through. What was sent meanwhile arrives once the wire is whole again.
    BlackHole,
}

/// Serves until its test ends. Clones are the same proxy.
#[derive(Clone)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: String,
    wire: watch::Sender<Wire>,
    commits: Losses,
    statements: Losses,
    /// How often connections were forsaken: those from before are.
    forsaken: AtomicU64,
}

/// Of so many the answer to one is lost; 0: of none.
#[derive(Default)]
struct Losses {
    one_of: AtomicU64,
    lost: AtomicU64,
}

impl Proxy {
    /// In front of the server of a URL with a port.
    pub async fn before(url: &str) -> Proxy {
        let url = url::Url::parse(url).expect("a URL");
        let target = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let wire = watch::channel(Wire::Whole).0;
        let (commits, statements, forsaken) = Default::default();
        let state = Arc::new(State { target, wire, commits, statements, forsaken });
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                tokio::spawn(async move { state.carry(client).await });
            }
        });
        Proxy { address, state }
    }

    /// The URL by way of the proxy; to Postgres without TLS, so that messages can be told apart.
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_port(Some(self.address.port())).expect("a URL with a host");
        if url.scheme().starts_with("postgres") {
            url.query_pairs_mut().append_pair("sslmode", "disable");
        }
        url.into()
    }

    pub fn set(&self, wire: Wire) {
        self.state.wire.send_replace(wire);
    }

    /// Nothing comes through the connections that there are, and none of them ends; new ones are as the wire is.
    pub fn forsake(&self) {
        self.state.forsaken.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on the answer to one of so many commits is lost, and its connection with it; 0: to none.
    pub fn lose_commits(&self, one_of: u64) {
        self.state.commits.one_of.store(one_of, Ordering::Relaxed);
    }

    /// From now on the answer to one of so many prepared statements outside of a transaction is lost; they commit by
    /// themselves if they write.
    pub fn lose_statements(&self, one_of: u64) {
        self.state.statements.one_of.store(one_of, Ordering::Relaxed);
    }

    /// How many answers to commits were lost.
    pub fn lost_commits(&self) -> u64 {
        self.state.commits.lost.load(Ordering::Relaxed)
    }

    /// How many answers to statements were lost.
    pub fn lost_statements(&self) -> u64 {
        self.state.statements.lost.load(Ordering::Relaxed)
    }
}

impl Losses {
    fn has_this_one(&self) -> bool {
        match self.one_of.load(Ordering::Relaxed) {
            0 => false,
            of => fastrand::u64(..of) == 0,
        }
    }
}

impl State {
    /// One connection, until either side ends it or the wire is cut.
    async fn carry(&self, client: TcpStream) {
        let mut wire = self.wire.subscribe();
        if *wire.borrow() == Wire::Cut {
            return;
        }
        let Ok(server) = TcpStream::connect(&self.target).await else { return };
        for socket in [&client, &server] {
            let _ = socket.set_nodelay(true);
        }
        let (phase, born) = (AtomicU8::new(BUSY), self.forsaken.load(Ordering::SeqCst));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = self.requests(from_client, to_server, &phase, born) => {}
            () = self.answers(from_server, to_client, &phase, born) => {}
            _ = wire.wait_for(|wire| *wire == Wire::Cut) => {}
        }
    }

    /// Returns once what has come may go on.
    async fn passes(&self, born: u64) {
        if self.forsaken.load(Ordering::SeqCst) != born {
            std::future::pending::<()>().await;
        }
        let _ = self.wire.subscribe().wait_for(|wire| *wire == Wire::Whole).await;
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, phase: &AtomicU8, born: u64) {
        let mut chunk = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            self.passes(born).await;
            let sent = &chunk[..count];
            let before = phase.load(Ordering::SeqCst);
            let now = match before {
                _ if is_commit(sent) && self.commits.has_this_one() => LOSES_COMMIT,
                IDLE if sent[0] == b'B' && self.statements.has_this_one() => LOSES_STATEMENT,
                // more of what has begun
                LOSES_COMMIT | LOSES_STATEMENT => before,
                _ => BUSY,
            };
            phase.store(now, Ordering::SeqCst);
            if to.write_all(sent).await.is_err() {
                return;
            }
        }
    }

    /// Ends, and with it the connection, once the whole answer that is to be lost has come: before that a statement may
    /// not have been committed.
    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, phase: &AtomicU8, born: u64) {
        let (mut chunk, mut end) = ([0; 16 * 1024], Vec::new());
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            self.passes(born).await;
            end.extend_from_slice(&chunk[..count]);
            end.drain(..end.len().saturating_sub(READY.len() + 1));
            let ready = end.strip_prefix(READY.as_slice());
            let lost = match phase.load(Ordering::SeqCst) {
                LOSES_COMMIT => Some(&self.commits),
                LOSES_STATEMENT => Some(&self.statements),
                _ => None,
            };
            match (ready, lost) {
                (Some(_), Some(lost)) => {
                    lost.lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                (None, Some(_)) => continue,
                (Some(b"I"), None) => phase.store(IDLE, Ordering::SeqCst),
                _ => {}
            }
            if to.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
    }
}

/// Whether what a client sends is, as far as it goes, a simple query `COMMIT`. A client waits for the answer before it
/// sends more, so the query comes alone.
fn is_commit(sent: &[u8]) -> bool {
    let text = sent.get(5..).filter(|_| sent.len() < SHORT && sent[0] == b'Q');
    text.is_some_and(|text| text.to_ascii_uppercase().starts_with(b"COMMIT"))
}

#[tokio::test]
async fn commit_whose_answer_is_lost_has_been_carried_out() {
    use sqlx::{Connection, Executor, PgConnection};
    let database = super::postgres::Database::empty().await;
    let proxy = Proxy::before(&database.url).await;
    let mut direct = database.connect().await;
    direct.execute("create table t (n int)").await.unwrap();
    let mut through = PgConnection::connect(&proxy.url(&database.url)).await.unwrap();
    proxy.lose_commits(1);
    let mut transaction = through.begin().await.unwrap();
    transaction.execute("insert into t values (1)").await.unwrap();
    let committed = transaction.commit().await;
    assert!(committed.is_err(), "the answer was lost");
    assert_eq!((proxy.lost_commits(), proxy.lost_statements()), (1, 0));
    let rows: i64 = sqlx::query_scalar("select count(*) from t").fetch_one(&mut direct).await.unwrap();
    assert_eq!(rows, 1, "and yet it was done");
}

#[tokio::test]
async fn statement_whose_answer_is_lost_has_been_carried_out() {
    use sqlx::{Connection, Executor, PgConnection};
    let database = super::postgres::Database::empty().await;
    let proxy = Proxy::before(&database.url).await;
    let mut direct = database.connect().await;
    direct.execute("create table t (n int)").await.unwrap();
    let mut through = PgConnection::connect(&proxy.url(&database.url)).await.unwrap();
    // its answer comes in many pieces, the first of them before it is committed
    let many = "insert into t select g from generate_series(1, $1) g returning n, repeat('x', 100)";
    proxy.lose_statements(1);
    let written = sqlx::query(many).bind(5000).execute(&mut through).await;
    assert!(written.is_err(), "the answer was lost");
    assert_eq!((proxy.lost_commits(), proxy.lost_statements()), (0, 1));
    let rows: i64 = sqlx::query_scalar("select count(*) from t").fetch_one(&mut direct).await.unwrap();
    assert_eq!(rows, 5000, "and yet it was done");
}

#[tokio::test]
async fn cut_wire_refuses_and_a_black_hole_says_nothing_until_the_wire_is_whole() {
    let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", echo.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = echo.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.into_split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    let proxy = Proxy::before(&url).await;
    let mut answer = [0; 1];
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"a").await.unwrap();
    assert_eq!(stream.read(&mut answer).await.unwrap(), 1);
    proxy.set(Wire::BlackHole);
    stream.write_all(b"b").await.unwrap();
    let silent = tokio::time::timeout(std::time::Duration::from_millis(200), stream.read(&mut answer)).await;
    assert!(silent.is_err(), "nothing comes through");
    proxy.set(Wire::Whole);
    assert_eq!((stream.read(&mut answer).await.unwrap(), answer), (1, *b"b"));
    proxy.forsake();
    stream.write_all(b"c").await.unwrap();
    let silent = tokio::time::timeout(std::time::Duration::from_millis(200), stream.read(&mut answer)).await;
    assert!(silent.is_err(), "nothing comes through any more");
    let mut stream = TcpStream::connect(proxy.address).await.unwrap();
    stream.write_all(b"d").await.unwrap();
    assert_eq!((stream.read(&mut answer).await.unwrap(), answer), (1, *b"d"), "new ones are served");
    proxy.set(Wire::Cut);
    assert_eq!(stream.read(&mut answer).await.unwrap(), 0, "the end");
    let mut refused = TcpStream::connect(proxy.address).await.unwrap();
    assert!(matches!(refused.read(&mut answer).await, Ok(0) | Err(_)));
}
