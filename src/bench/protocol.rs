//! The words between a measurement and a second process of it: which part that one plays, and what it says.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::bench::BenchEnv;

/// Told in the first line. It comes by a pipe, because it may hold the database's password.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum Part {
    /// Listens for bare notifications.
    Listen { url: String, channel: String },
    /// A whole service, from its start on; `tells` each start of a run.
    Serve { url: String, dir: String, tells: bool },
    /// The services of an engine, once it is told to go.
    Engine { url: String, dir: String },
    /// A whole service with the default configuration, which says where it listens.
    Whole(ServiceSettings),
}

impl Part {
    /// A service on the tables of this place.
    pub fn serve(place: &BenchEnv, tells: bool) -> Part {
        let (url, dir) = address(place);
        Part::Serve { url, dir, tells }
    }

    /// An engine on the tables of this place.
    pub fn engine(place: &BenchEnv) -> Part {
        let (url, dir) = address(place);
        Part::Engine { url, dir }
    }
}

fn address(place: &BenchEnv) -> (String, String) {
    (place.config.database.url.expose().to_owned(), place.dir.display().to_string())
}

/// Settings of a whole service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceSettings {
    pub url: String,
    pub dir: String,
    /// Its configuration; empty: the default one.
    pub toml: String,
    pub admin_token: String,
    /// Where the API of its model begins; `None`: it has none.
    pub model: Option<String>,
    /// Address and prefix; `None`: the embedded bus.
    pub redis: Option<(String, String)>,
}

/// A message of the part: a line that it prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum PartMessage {
    Ready,
    /// A service that can be called there.
    Listens {
        address: SocketAddr,
    },
    /// A run was started, by `Clock::elapsed`.
    Started {
        run_id: Uuid,
        at: Duration,
    },
    /// CPU time on all processors since the part was started.
    Ran {
        cpu: Duration,
    },
    /// It has ended in order, and executed so many runs.
    Ended {
        executed: u64,
    },
}

/// Lines that the part is told later.
pub const GO: &str = "go";
pub const STOP: &str = "stop";
/// Asks for [`PartMessage::Ran`].
pub const RAN: &str = "ran";
