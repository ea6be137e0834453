//! Where `scripts/test.sh` has started the throw-away servers. The only place of the tests that reads the environment.

/// The address in `name`, or a failure that says what to do: a test is never skipped for want of a server.
#[allow(clippy::disallowed_methods)] // the owner
fn address(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests with scripts/test.sh, which starts the servers they need (one test: scripts/test.sh -- NAME)")
    })
}

/// A PostgreSQL role that is neither superuser nor BYPASSRLS and may create databases.
pub fn postgres_url() -> String {
    address("REVEILLE_TEST_POSTGRES_URL")
}

/// The superuser of the same server, for what only it can do (killing sessions, a role that `check` must refuse).
pub fn postgres_owner_url() -> String {
    address("REVEILLE_TEST_POSTGRES_OWNER_URL")
}

/// A Redis with its append-only file on.
pub fn redis_url() -> String {
    address("REVEILLE_TEST_REDIS_URL")
}

/// The Chromium that the pages are opened in.
pub fn chromium() -> String {
    address("REVEILLE_TEST_CHROMIUM")
}

/// Where pictures of the pages are kept, if they are to be kept.
#[allow(clippy::disallowed_methods)] // the owner
pub fn images() -> Option<String> {
    std::env::var("REVEILLE_TEST_IMAGES").ok().filter(|place| !place.is_empty())
}

/// The library that steps the clock of a process.
pub fn faketime() -> String {
    address("REVEILLE_TEST_FAKETIME")
}

/// The number in `name`, or the usual one.
#[allow(clippy::disallowed_methods)] // the owner
fn number(name: &str, usual: usize) -> usize {
    let asked = std::env::var(name).ok();
    asked
        .map_or(usual, |number| number.parse().unwrap_or_else(|_| panic!("{name} must be a number, and is `{number}`")))
}

/// How many cycles of a fault that is repeated: what CI does, unless `scripts/chaos.sh` asks for more.
pub fn chaos_cycles() -> usize {
    number("REVEILLE_CHAOS_CYCLES", 25)
}

/// How many runs share a budget on two instances: what CI does, unless `scripts/drills.sh` asks for more.
pub fn drill_runs() -> usize {
    number("REVEILLE_DRILL_RUNS", 100)
}

/// How many events pass instances that are killed: what CI does, unless `scripts/drills.sh` asks for more.
pub fn drill_events() -> usize {
    number("REVEILLE_DRILL_EVENTS", 40_000)
}

/// How many deliveries a channel that misbehaves is given: what CI does, unless `scripts/drills.sh` asks for more.
pub fn drill_deliveries() -> usize {
    number("REVEILLE_DRILL_DELIVERIES", 1_500)
}

/// How many runs call the tools of MCP servers: what CI does, unless `scripts/drills.sh` asks for more.
pub fn drill_mcp_runs() -> usize {
    number("REVEILLE_DRILL_MCP_RUNS", 20)
}

/// How often a service dies at each place of a turn: what CI does, unless `scripts/drills.sh` asks for more.
pub fn drill_turns() -> usize {
    number("REVEILLE_DRILL_TURNS", 1)
}

/// A port for a server that goes down and comes back: below those that the system gives to whoever asks for any, or one
/// of these might have it meanwhile.
pub fn lasting_port() -> u16 {
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(10_000..32_000)).find(free).expect("a free port")
}

/// So many of them, each another one.
pub fn lasting_ports<const N: usize>() -> [u16; N] {
    let mut ports = [0; N];
    for at in 0..N {
        ports[at] = std::iter::repeat_with(lasting_port).find(|port| !ports.contains(port)).expect("a free port");
    }
    ports
}

#[tokio::test]
async fn redis_of_the_tests_keeps_what_it_is_given() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let url = url::Url::parse(&redis_url()).unwrap();
    let address = (url.host_str().unwrap(), url.port().unwrap());
    let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
    connection.write_all(b"CONFIG GET appendonly\r\nQUIT\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n+OK\r\n");
}
