//! A poll of a key in a Redis that the operator has named: reading commands only, keys of allowed prefixes only.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands, Client, RedisError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use crate::base::secret::SecretUrl;
use crate::domain::trigger::condition::poll::RedisRead;
use crate::domain::trigger::condition::{PollFault, RedisPoll};
use crate::ports::poll::{VALUE_BYTES, json_or_text};

/// Most fields of a hash.
const FIELDS: usize = 1_000;
/// How long the server may take to let us in.
const CONNECT: Duration = Duration::from_secs(5);

/// `[poll.redis.<name>]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `redis://user:password@host:6379/0`; `rediss://` is encrypted. Give it a user that may only read.
    pub url: SecretUrl,
    /// Prefixes of readable keys; empty: none may be read. `[""]` is every key.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Tenants that may poll it, or `["*"]`; empty: nobody.
    #[serde(default)]
    pub tenants: Vec<String>,
}

/// A Redis, connected to when it is first asked.
pub struct RedisSource {
    client: Client,
    connection: OnceCell<ConnectionManager>,
    prefixes: Vec<String>,
    pub tenants: Vec<String>,
}

impl RedisSource {
    /// Connects to nothing yet.
    pub fn new(settings: &Settings) -> Result<RedisSource, String> {
        // the error may quote the address, and with it the password
        let client = Client::open(settings.url.expose())
            .map_err(|_| "must be an address such as `redis://user:password@host:6379/0`".to_owned())?;
        Ok(RedisSource {
            client,
            connection: OnceCell::new(),
            prefixes: settings.prefixes.clone(),
            tenants: settings.tenants.clone(),
        })
    }

    /// Whether this key may be read; a sentence where not.
    pub fn check(&self, key: &str) -> Result<(), String> {
        if self.prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())) {
            return Ok(());
        }
        match self.prefixes.is_empty() {
            true => Err("the operator has opened no keys of this source".into()),
            false => Err(format!("must begin with one of: {}", self.prefixes.join(", "))),
        }
    }

    /// The value of a key, as its type has it.
    pub async fn poll(&self, poll: &RedisPoll) -> Result<Value, PollFault> {
        self.check(&poll.key).map_err(|why| PollFault::new("denied", why))?;
        let connect = || async {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(Some(CONNECT))
                .set_number_of_retries(1);
            ConnectionManager::new_with_config(self.client.clone(), config).await
        };
        let mut connection = self.connection.get_or_try_init(connect).await.map_err(failed)?.clone();
        read(&mut connection, poll).await
    }
}

async fn read(connection: &mut ConnectionManager, poll: &RedisPoll) -> Result<Value, PollFault> {
    let key = poll.key.as_str();
    if poll.read == RedisRead::Exists {
        return Ok(Value::Bool(connection.exists(key).await.map_err(failed)?));
    }
    let kind: String = redis::cmd("TYPE").arg(key).query_async(connection).await.map_err(failed)?;
    let read = match (poll.read, kind.as_str()) {
        (_, "none") => return Ok(Value::Null),
        (RedisRead::Auto, "string") => RedisRead::Get,
        (RedisRead::Auto, "hash") => RedisRead::Hgetall,
        (RedisRead::Auto, "list") => RedisRead::Llen,
        (RedisRead::Auto, "set") => RedisRead::Scard,
        (RedisRead::Auto, "zset") => RedisRead::Zcard,
        (RedisRead::Auto, "stream") => RedisRead::Xlen,
        (RedisRead::Auto, other) => {
            return Err(PollFault::new("wrong_type", format!("a key of the type {other} can't be read")));
        }
        (read, _) => read,
    };
    let length = match read {
        RedisRead::Get => return text(connection, key).await,
        RedisRead::Hgetall => return hash(connection, key).await,
        RedisRead::Llen => connection.llen(key).await,
        RedisRead::Scard => connection.scard(key).await,
        RedisRead::Zcard => connection.zcard(key).await,
        RedisRead::Xlen => connection.xlen(key).await,
        RedisRead::Auto | RedisRead::Exists => unreachable!("both are decided above"),
    };
    let length: i64 = length.map_err(failed)?;
    Ok(Value::from(length))
}

/// No more of it than is allowed is asked for.
async fn text(connection: &mut ConnectionManager, key: &str) -> Result<Value, PollFault> {
    let bytes: Vec<u8> = connection.getrange(key, 0, VALUE_BYTES as isize).await.map_err(failed)?;
    if bytes.len() > VALUE_BYTES {
        return Err(too_large("the value"));
    }
    as_text(bytes)
}

async fn hash(connection: &mut ConnectionManager, key: &str) -> Result<Value, PollFault> {
    let (mut fields, mut cursor, mut bytes) = (Map::new(), 0_u64, 0);
    // in parts, so that a hash that is too large is never read whole
    loop {
        let (next, part): (u64, Vec<(String, Vec<u8>)>) =
            redis::cmd("HSCAN").arg(key).arg(cursor).query_async(connection).await.map_err(failed)?;
        for (name, value) in part {
            bytes += name.len() + value.len();
            fields.insert(name, as_text(value)?);
        }
        if fields.len() > FIELDS || bytes > VALUE_BYTES {
            return Err(too_large("the hash"));
        }
        if next == 0 {
            return Ok(Value::Object(fields));
        }
        cursor = next;
    }
}

fn as_text(bytes: Vec<u8>) -> Result<Value, PollFault> {
    let text = String::from_utf8(bytes).map_err(|_| PollFault::new("not_text", "the value is no text"))?;
    Ok(json_or_text(&text))
}

fn too_large(what: &str) -> PollFault {
    PollFault::new("too_large", format!("{what} has more than {VALUE_BYTES} bytes or {FIELDS} fields"))
}

fn failed(error: RedisError) -> PollFault {
    let kind = if error.is_timeout() {
        "timeout"
    } else if error.is_io_error() || error.is_connection_dropped() {
        "connect"
    } else {
        "redis"
    };
    // its detail may hold the address; the code says what matters
    PollFault::new(kind, format!("redis: {}", error.code().map_or(error.category(), |code| code)))
}
