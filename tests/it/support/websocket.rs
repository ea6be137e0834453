//! A WebSocket client (RFC 6455) that hides nothing: what it is told comes as it came.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct WebSocket {
    stream: TcpStream,
}

/// A message, as it came in one frame.
#[derive(Debug, PartialEq)]
pub enum Frame {
    Text(Value),
    Ping,
    /// The code, and the words.
    Close(u16, String),
    /// The connection was closed without a frame.
    End,
}

impl WebSocket {
    /// Shakes hands with more headers, each with its line end; an answer that is no WebSocket is the error.
    pub async fn open(address: SocketAddr, path: &str, headers: &str) -> Result<WebSocket, String> {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(timeout(PATIENCE, stream.read_u8()).await.expect("an answer").expect("an open connection"));
        }
        let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
        // the answer to the key of RFC 6455, section 1.3
        match head.starts_with("http/1.1 101") && head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=") {
            true => Ok(WebSocket { stream }),
            false => Err(head),
        }
    }

    /// Sends a text of up to 125 bytes, masked as clients must.
    pub async fn send(&mut self, text: &str) {
        let mask = [7, 77, 177, 27];
        let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).ok().filter(|len| *len < 126).expect("short")];
        frame.extend(mask);
        frame.extend(text.bytes().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&frame).await.expect("written");
    }

    /// The next frame, whatever it is. Pings are not answered.
    pub async fn next(&mut self) -> Frame {
        timeout(PATIENCE, self.read()).await.expect("a frame").unwrap_or(Frame::End)
    }

    async fn read(&mut self) -> std::io::Result<Frame> {
        let (kind, short) = (self.stream.read_u8().await?, self.stream.read_u8().await?);
        let length = match short {
            126 => self.stream.read_u16().await?.into(),
            127 => self.stream.read_u64().await?,
            short => short.into(),
        };
        let mut payload = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut payload).await?;
        Ok(match kind {
            0x81 => Frame::Text(serde_json::from_slice(&payload).expect("JSON")),
            0x89 => Frame::Ping,
            0x88 => {
                let code = u16::from_be_bytes([payload[0], payload[1]]);
                Frame::Close(code, String::from_utf8(payload[2..].to_vec()).expect("text"))
            }
            kind => panic!("an unexpected frame of kind {kind:x}"),
        })
    }
}
