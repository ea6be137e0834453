//! Servers that fail before they say a word: one hangs, one breaks off, one is not there.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};

/// A port of this machine that refuses each connection for as long as this value lives.
///
/// The port is bound and nobody listens at it. So no other process is given it: a port that was merely free a moment
/// ago can belong to a server of another test by now.
pub struct ClosedPort(TcpSocket);

impl ClosedPort {
    /// A port that the system picks.
    pub fn bind() -> ClosedPort {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        ClosedPort(socket)
    }

    /// Where the port is.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("an address")
    }
}

/// The three servers, for as long as this value lives.
pub struct BrokenServers {
    hanging: TcpListener,
    closes: SocketAddr,
    absent: ClosedPort,
}

impl BrokenServers {
    /// Starts them.
    pub async fn start() -> BrokenServers {
        let hanging = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let closing = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let closes = closing.local_addr().expect("an address");
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = closing.accept().await {
                let _ = socket.read(&mut [0; 4096]).await;
            }
        });
        BrokenServers { hanging, closes, absent: ClosedPort::bind() }
    }

    /// Takes each connection and never answers.
    pub fn hangs(&self) -> String {
        format!("http://{}", self.hanging.local_addr().expect("an address"))
    }

    /// Reads the request and closes the connection.
    pub fn closes(&self) -> String {
        format!("http://{}", self.closes)
    }

    /// Refuses the connection.
    pub fn absent(&self) -> String {
        format!("http://{}", self.absent.address())
    }

    /// Each of the three with the word for what it does.
    pub fn each(&self) -> [(&'static str, String); 3] {
        [("hangs", self.hangs()), ("closes", self.closes()), ("absent", self.absent())]
    }
}
