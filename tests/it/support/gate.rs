//! A gate in front of a PostgreSQL server: opened late, cut, or held before one chosen request.
//!
//! It forwards bytes and makes none up. A request is what a client sends up to its `Sync`, or a simple `Query`: one
//! round trip, so that holding the n-th stops a transaction between two of its statements.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::servers;

/// First bytes of a client's message that ends a request.
const ENDS_REQUEST: [u8; 2] = [b'S', b'Q'];

pub struct Gate {
    address: SocketAddr,
    target: String,
    hold: Arc<Hold>,
    /// Everything that forwards; none while the gate is closed.
    open: Mutex<Option<JoinSet<()>>>,
}

/// Which request is to be held.
struct Hold {
    /// So many requests pass before one is held.
    left: Mutex<Option<usize>>,
    held: watch::Sender<bool>,
    /// Requests that have come.
    requests: AtomicUsize,
}

impl Gate {
    /// A gate on a port of its own, in front of the server of this URL. Closed: connections are refused.
    pub async fn before(url: &str) -> Gate {
        let url = url::Url::parse(url).expect("a URL");
        let target = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
        let address = ([127, 0, 0, 1], servers::lasting_port()).into();
        let hold =
            Arc::new(Hold { left: Mutex::new(None), held: watch::channel(false).0, requests: AtomicUsize::new(0) });
        Gate { address, target, hold, open: Mutex::new(None) }
    }

    /// The URL that leads through the gate, without TLS, so that requests can be told apart.
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).expect("a URL");
        url.set_port(Some(self.address.port())).expect("a URL with a host");
        url.query_pairs_mut().append_pair("sslmode", "disable");
        url.into()
    }

    /// Lets connections through from now on.
    pub async fn open(&self) {
        let listener = TcpListener::bind(self.address).await.expect("the gate's own port");
        let (target, hold) = (self.target.clone(), Arc::clone(&self.hold));
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, target.clone(), Arc::clone(&hold)));
            }
        });
        *self.open.lock().expect("gate lock") = Some(forwarding);
    }

    /// Cuts every connection and refuses new ones.
    pub async fn cut(&self) {
        let forwarding = self.open.lock().expect("gate lock").take();
        if let Some(mut forwarding) = forwarding {
            forwarding.shutdown().await;
        }
    }

    /// How many requests have come: round trips of all connections together.
    pub fn requests(&self) -> usize {
        self.hold.requests.load(Ordering::Relaxed)
    }

    /// Lets `pass` more requests through and holds the one after them.
    pub fn hold_after(&self, pass: usize) {
        *self.hold.left.lock().expect("gate lock") = Some(pass);
    }

    /// Returns once a request is held.
    pub async fn held(&self) {
        let _ = self.hold.held.subscribe().wait_for(|held| *held).await;
    }

    /// Lets everything pass again.
    pub fn release(&self) {
        *self.hold.left.lock().expect("gate lock") = None;
        self.hold.held.send_replace(false);
    }
}

impl Hold {
    async fn pass(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.is_the_one() {
            self.held.send_replace(true);
            let _ = self.held.subscribe().wait_for(|held| !*held).await;
        }
    }

    fn is_the_one(&self) -> bool {
        let mut left = self.left.lock().expect("gate lock");
        match left.as_mut() {
            None => false,
            Some(0) => {
                *left = None;
                true
            }
            Some(more) => {
                *more -= 1;
                false
            }
        }
    }
}

/// One connection, until either side ends it.
async fn forward(client: TcpStream, target: String, hold: Arc<Hold>) {
    let Ok(server) = TcpStream::connect(&target).await else { return };
    for socket in [&client, &server] {
        let _ = socket.set_nodelay(true);
    }
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    tokio::select! {
        _ = requests(from_client, to_server, &hold) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

/// Forwards a client's messages one by one, and asks before each request.
async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, hold: &Hold) -> std::io::Result<()> {
    let start = message(&mut from).await?;
    to.write_all(&start).await?;
    let mut begins = true;
    loop {
        let kind = from.read_u8().await?;
        let rest = message(&mut from).await?;
        if begins {
            hold.pass().await;
        }
        begins = ENDS_REQUEST.contains(&kind);
        to.write_u8(kind).await?;
        to.write_all(&rest).await?;
    }
}

/// A length, which counts itself, and what follows it.
async fn message(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut whole = length.to_be_bytes().to_vec();
    whole.resize(length as usize, 0);
    from.read_exact(&mut whole[4..]).await?;
    Ok(whole)
}
