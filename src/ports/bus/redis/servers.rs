//! Which Redis is meant: one server, a cluster, or whoever the sentinels call master; and connections to it.
//!
//! A connection that failed is thrown away and made anew by the next call. While nobody answers, calls fail at once
//! instead of queueing behind each other's attempts.

use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisFuture,
    TlsMode, Value,
};
use tokio::sync::Mutex;
use url::Url;

use crate::base::compute::ENGINE;
use crate::ports::bus::BusEntry;
use crate::ports::bus::entry_reader::EntryReader;
use crate::ports::bus::redis::streams::{FoundEntry, bus_entry, entry_bytes};

/// A server that has not let us in by then counts as away.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// For this long after a failure nobody tries again.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(200);
/// The port of Redis, and of its sentinels.
const PORTS: (u16, u16) = (6379, 26379);

/// The servers that a URL names.
pub(super) enum Servers {
    One(Client),
    Cluster(Vec<Url>, Duration),
    Sentinels(Mutex<SentinelClient>),
}

/// A connection to them; clones share it.
#[derive(Clone)]
pub(super) enum RedisConnection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            RedisConnection::One(connection) => connection.req_packed_command(cmd),
            RedisConnection::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            RedisConnection::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            RedisConnection::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            RedisConnection::One(connection) => connection.get_db(),
            RedisConnection::Cluster(connection) => connection.get_db(),
        }
    }
}

impl Servers {
    /// Reads `bus.url`. Nothing is connected yet.
    ///
    /// # Errors
    /// A sentence on what is wrong, without the password.
    pub fn of(url: &str) -> Result<Servers, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
        let (base, mode) = scheme.split_once('+').unwrap_or((scheme, ""));
        let to_text = |error: RedisError| error.to_string();
        match mode {
            "" => Ok(Servers::One(Client::open(url).map_err(to_text)?)),
            "cluster" => {
                let nodes = nodes(base, rest, PORTS.0)?;
                builder(&nodes).build().map_err(to_text)?;
                Ok(Servers::Cluster(nodes, CONNECT_LIMIT))
            }
            "sentinel" => Ok(Servers::Sentinels(Mutex::new(sentinels(base, rest)?))),
            other => Err(format!("`{other}` is neither `cluster` nor `sentinel`")),
        }
    }

    /// Whether the servers form a Redis Cluster.
    pub fn is_cluster(&self) -> bool {
        matches!(self, Servers::Cluster(..))
    }

    /// A new connection whose answers are waited for as long as `patience`.
    pub async fn connect(&self, patience: Duration) -> Result<RedisConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_LIMIT))
            .set_response_timeout(Some(patience));
        let connecting = async {
            match self {
                Servers::One(client) => {
                    client.get_multiplexed_async_connection_with_config(&config).await.map(RedisConnection::One)
                }
                Servers::Cluster(nodes, limit) => {
                    let client: ClusterClient =
                        builder(nodes).retries(2).connection_timeout(*limit).response_timeout(patience).build()?;
                    client.get_async_connection().await.map(RedisConnection::Cluster)
                }
                Servers::Sentinels(client) => {
                    client.lock().await.get_async_connection_with_config(&config).await.map(RedisConnection::One)
                }
            }
        };
        // names that resolve slowly and sentinels that hang are not under the limit of one connection
        tokio::time::timeout(CONNECT_LIMIT * 2, connecting)
            .await
            .unwrap_or_else(|_| Err(unavailable("it does not answer")))
    }
}

/// One connection for all short commands.
pub(super) struct RedisLink {
    /// The servers to connect to.
    pub servers: Servers,
    /// Reads what they answer.
    pub reader: EntryReader,
    patience: Duration,
    current: Mutex<CurrentConnection>,
}

#[derive(Default)]
struct CurrentConnection {
    connection: Option<RedisConnection>,
    failed: Option<(Instant, String)>,
}

impl RedisLink {
    /// A link that connects at its first use. `patience` bounds each answer.
    pub fn new(servers: Servers, patience: Duration) -> RedisLink {
        RedisLink { servers, reader: EntryReader::default(), patience, current: Mutex::default() }
    }

    /// Entries as the bus hands them to consumers. All tenants wait for these, so they wait for no tenant's turn.
    pub async fn entries(&self, found: Vec<FoundEntry>) -> Result<Vec<BusEntry>, RedisError> {
        let read = self.reader.read(ENGINE, found, |(_, raw, _)| entry_bytes(raw), bus_entry).await;
        read.map_err(|error| RedisError::from((ErrorKind::Parse, "entries can't be read", error.to_string())))
    }

    /// Asks one command; a connection that has died meanwhile is made anew, once.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let mut connection = self.connection().await?;
        match command.query_async(&mut connection).await {
            Err(error) if self.discard_if_broken(&error).await => {
                command.query_async(&mut self.connection().await?).await
            }
            answer => answer,
        }
    }

    /// Asks several at once; all on one key where the servers are a cluster.
    pub async fn ask_all<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, RedisError> {
        let mut connection = self.connection().await?;
        match commands.query_async(&mut connection).await {
            Err(error) if self.discard_if_broken(&error).await => {
                commands.query_async(&mut self.connection().await?).await
            }
            answer => answer,
        }
    }

    async fn connection(&self) -> Result<RedisConnection, RedisError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok(connection.clone());
        }
        if let Some((at, why)) = &current.failed
            && at.elapsed() < PAUSE_AFTER_FAILURE
        {
            return Err(unavailable(why));
        }
        match self.servers.connect(self.patience).await {
            Ok(connection) => {
                *current = CurrentConnection { connection: Some(connection.clone()), failed: None };
                Ok(connection)
            }
            Err(error) => {
                current.failed = Some((Instant::now(), error.to_string()));
                Err(error)
            }
        }
    }

    /// Throws the connection away where the error says that it is of no more use; answers whether another one may do.
    async fn discard_if_broken(&self, error: &RedisError) -> bool {
        if !is_lost(error) {
            return false;
        }
        self.current.lock().await.connection = None;
        !error.is_timeout()
    }
}

/// Whether the connection behind this error is of no more use: it broke, it hangs, or it leads to a server that has
/// become a replica.
pub(super) fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() || error.code() == Some("READONLY")
}

fn unavailable(why: &str) -> RedisError {
    RedisError::from(std::io::Error::new(std::io::ErrorKind::TimedOut, why.to_owned()))
}

fn builder(nodes: &[Url]) -> ClusterClientBuilder {
    ClusterClient::builder(nodes.to_vec())
}

/// `user:password@h1:p1,h2:p2` as a URL for each node.
fn nodes(scheme: &str, rest: &str, port: u16) -> Result<Vec<Url>, String> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    let at = if user.is_empty() { "" } else { "@" };
    hosts
        .split(',')
        .map(|host| {
            // the password must not come back in the sentence
            let mut url = Url::parse(&format!("{scheme}://{user}{at}{host}"))
                .map_err(|error| format!("`{host}` is no host and port: {error}"))?;
            if url.host().is_none() {
                return Err("each host must have a name".into());
            }
            if url.port().is_none() {
                url.set_port(Some(port)).map_err(|()| format!("`{host}` takes no port"))?;
            }
            Ok(url)
        })
        .collect()
}

/// `user:password@h1:p1,h2:p2/service/db?sentinel_user=…&sentinel_password=…`; user and password are those of Redis.
fn sentinels(scheme: &str, rest: &str) -> Result<SentinelClient, String> {
    let nodes = nodes(scheme, rest, PORTS.1)?;
    let tls = scheme == "rediss";
    let address = |url: &Url| {
        let (host, port) = (url.host_str().unwrap_or_default().to_owned(), url.port().unwrap_or(PORTS.1));
        match tls {
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host, port),
        }
    };
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut path = path.split('/').skip(1);
    let service =
        path.next().filter(|service| !service.is_empty()).ok_or("the service's name is missing: …/service")?;
    let mut builder = SentinelClientBuilder::new(nodes.iter().map(address), service, SentinelServerType::Master)
        .map_err(|error| error.to_string())?;
    if let Some(db) = path.next().filter(|db| !db.is_empty()) {
        builder = builder.set_client_to_redis_db(db.parse().map_err(|_| format!("`{db}` is no database's number"))?);
    }
    if tls {
        builder =
            builder.set_client_to_redis_tls_mode(TlsMode::Secure).set_client_to_sentinel_tls_mode(TlsMode::Secure);
    }
    let plain = |text: &str| -> Result<String, String> {
        let decoded: Option<(_, _)> = url::form_urlencoded::parse(format!("x={}", text.replace('+', "%2B")).as_bytes())
            .next()
            .map(|(name, value)| (name.into_owned(), value.into_owned()));
        decoded.map(|(_, value)| value).ok_or_else(|| "user or password can't be decoded".into())
    };
    if let Some(first) = nodes.first() {
        if !first.username().is_empty() {
            builder = builder.set_client_to_redis_username(plain(first.username())?);
        }
        if let Some(password) = first.password() {
            builder = builder.set_client_to_redis_password(plain(password)?);
        }
    }
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        builder = match &*name {
            "sentinel_user" => builder.set_client_to_sentinel_username(&*value),
            "sentinel_password" => builder.set_client_to_sentinel_password(&*value),
            other => return Err(format!("`{other}` is no parameter of this URL")),
        };
    }
    builder.build().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(url: &str) -> String {
        Servers::of(url).map(|_| ()).unwrap_err()
    }

    #[test]
    fn url_names_one_server_a_cluster_or_sentinels() {
        assert!(matches!(Servers::of("redis://:canary@h:1/2"), Ok(Servers::One(_))));
        assert!(matches!(Servers::of("redis+cluster://u:p@h1,h2:7"), Ok(Servers::Cluster(nodes, _)) if nodes
            .iter().map(Url::as_str).eq(["redis://u:p@h1:6379", "redis://u:p@h2:7"])));
        assert!(matches!(
            Servers::of("redis+sentinel://u:p%2B@h1,h2:7/main/3?sentinel_password=s"),
            Ok(Servers::Sentinels(_))
        ));
    }

    #[test]
    fn url_errors_do_not_repeat_the_password() {
        assert_eq!(fault("redis+ring://h"), "`ring` is neither `cluster` nor `sentinel`");
        assert_eq!(fault("redis+sentinel://h1"), "the service's name is missing: …/service");
        assert_eq!(fault("redis+sentinel://h1/main?x=1"), "`x` is no parameter of this URL");
        for url in ["redis+cluster://u:canary@h:x", "redis+sentinel://u:canary@h/main/x", "redis://u:canary@h/x"] {
            assert!(!fault(url).contains("canary"), "{}", fault(url));
        }
    }
}
