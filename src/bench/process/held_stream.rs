//! A stream of the service by a bare socket, from an address of its own: a client of HTTP would take as much of the
//! processors as the service.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::ensure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const OPENED: &[u8; 12] = b"HTTP/1.1 200";

/// A stream that has begun, behind the first bytes of its answer; it ends with its connection. `headers` are whole
/// lines.
///
/// # Errors
/// It was refused.
pub async fn open_stream(
    address: SocketAddr,
    from: Ipv4Addr,
    path: &str,
    headers: &[String],
) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let mut stream = socket.connect(address).await?;
    let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\nconnection: close\r\n{more}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut status = [0; OPENED.len()];
    stream.read_exact(&mut status).await?;
    ensure!(&status == OPENED, "the stream was refused");
    Ok(stream)
}
