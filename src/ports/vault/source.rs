//! Where a master key lies: in the configuration, in a file, or with a command that prints it. Read once, at the start.
//!
//! Nothing of what a file holds or a command prints is ever shown; what a command says on its standard error is not
//! read at all, because it may be the key.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::base::secret::{REDACTED, Secret};

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked at whether a command that said all has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Most that a file may hold or a command print, in bytes.
const LENGTH: usize = 4096;

/// An entry of `vault.master_keys`.
#[derive(Clone)]
pub enum KeySource {
    /// `"id:base64"`
    Value(Secret),
    /// `{ file = "/run/secrets/key" }`: the same text, in a file that nobody else may read.
    File(PathBuf),
    /// `{ command = ["pass", "show", "reveille"] }`: the same text, printed by a program; no shell is used.
    Command(Vec<String>),
}

impl KeySource {
    /// A key that is given by its value.
    pub fn value(text: impl Into<String>) -> KeySource {
        KeySource::Value(Secret::new(text.into()))
    }

    /// The text of the key. The fault says what to do and repeats nothing.
    pub(super) fn text(&self) -> Result<Zeroizing<String>, String> {
        match self {
            KeySource::Value(secret) => Ok(Zeroizing::new(secret.expose().to_owned())),
            KeySource::File(path) => {
                read_file(path).map_err(|why| format!("the file {} can't be used: {why}", path.display()))
            }
            KeySource::Command(argv) => {
                let program = argv.first().map(String::as_str).unwrap_or_default();
                printed_by(argv, PATIENCE).map_err(|why| format!("the command `{program}` {why}"))
            }
        }
    }
}

/// Reads a file that nobody but its owner may read.
pub(super) fn read_file(path: &Path) -> Result<Zeroizing<String>, String> {
    let told = |error: std::io::Error| error.to_string();
    let file = std::fs::File::open(path).map_err(told)?;
    let mode = file.metadata().map_err(told)?.permissions().mode();
    if mode & 0o077 != 0 {
        let shown = path.display();
        return Err(format!("others may read it (mode {:o}); hint: chmod 600 {shown}", mode & 0o777));
    }
    within_limit(file)?.ok_or_else(|| format!("it holds more than {LENGTH} bytes"))
}

/// Up to [`LENGTH`] bytes of text; `None` where there are more.
fn within_limit(from: impl Read) -> Result<Option<Zeroizing<String>>, String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(LENGTH + 1));
    from.take(LENGTH as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let text = std::str::from_utf8(&bytes).map_err(|_| "it is not UTF-8")?;
    Ok((bytes.len() <= LENGTH).then(|| Zeroizing::new(text.to_owned())))
}

/// The output of a program, if it ends well and in time.
fn printed_by(argv: &[String], patience: Duration) -> Result<Zeroizing<String>, String> {
    let [program, arguments @ ..] = argv else { return Err("is empty".into()) };
    let until = Instant::now() + patience;
    let started =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(|error| format!("can't be started: {error}"))?;
    let output =
        listen(&mut child, until).and_then(|output| output.ok_or_else(|| format!("printed more than {LENGTH} bytes")));
    if output.is_err() {
        let _ = child.kill();
    }
    let ended = ended_by(&mut child, until);
    let output = output?;
    match ended? {
        status if status.success() => Ok(output),
        status => Err(format!("ended with {status}; hint: run it by hand as the user of the service")),
    }
}

/// All that a program prints; a thread of its own listens, because a read can't be given up.
fn listen(child: &mut Child, until: Instant) -> Result<Option<Zeroizing<String>>, String> {
    let stdout = child.stdout.take().ok_or("can't be listened to")?;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(within_limit(stdout)));
    told.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(|_| Err(late()))
}

fn ended_by(child: &mut Child, until: Instant) -> Result<std::process::ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < until => std::thread::park_timeout(LOOK),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(late());
            }
            Err(error) => return Err(format!("can't be waited for: {error}")),
        }
    }
}

fn late() -> String {
    format!("has not ended after {} s", PATIENCE.as_secs())
}

impl From<Secret> for KeySource {
    fn from(secret: Secret) -> KeySource {
        KeySource::Value(secret)
    }
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KeySource::Value(_) => f.write_str(REDACTED),
            KeySource::File(path) => f.debug_tuple("File").field(path).finish(),
            // an argument may be a secret
            KeySource::Command(argv) => f.debug_tuple("Command").field(&argv.first()).finish(),
        }
    }
}

impl Serialize for KeySource {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        match self {
            KeySource::Value(_) => to.serialize_str(REDACTED),
            KeySource::File(path) => {
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_entry("file", path)?;
                map.end()
            }
            KeySource::Command(argv) => {
                let shown: Vec<&str> =
                    argv.iter().enumerate().map(|(at, word)| if at == 0 { word.as_str() } else { REDACTED }).collect();
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_entry("command", &shown)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for KeySource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<KeySource, D::Error> {
        from.deserialize_any(KeyReading)
    }
}

struct KeyReading;

const FORMS: &str = "\"id:base64\", { file = \"…\" } or { command = [\"…\"] }";

impl<'de> Visitor<'de> for KeyReading {
    type Value = KeySource;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeySource, E> {
        Ok(KeySource::value(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<KeySource, A::Error> {
        let one = || de::Error::custom(format!("a master key is one of {FORMS}"));
        let source = match map.next_key::<String>()?.as_deref() {
            Some("file") => KeySource::File(map.next_value()?),
            Some("command") => KeySource::Command(map.next_value()?),
            _ => return Err(one()),
        };
        match (map.next_key::<String>()?, &source) {
            (Some(_), _) => Err(one()),
            (None, KeySource::Command(argv)) if argv.is_empty() => {
                Err(de::Error::custom("the command is empty; it is a program and its arguments"))
            }
            (None, _) => Ok(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than the machine holds up what ends by itself.
    const ENDS: Duration = Duration::from_secs(30);
    /// Patience with a program that hangs.
    const HANGS: Duration = Duration::from_millis(500);

    fn printed(script: &str, limit: Duration) -> Result<String, String> {
        let argv = ["sh", "-c", script].map(str::to_owned);
        printed_by(&argv, limit).map(|text| text.to_string())
    }

    #[test]
    fn command_prints_the_key_and_nothing_of_it_is_shown_when_it_fails() {
        assert_eq!(printed("echo a:canary", ENDS), Ok("a:canary\n".into()));
        let refused = [
            (
                "echo canary; echo canary >&2; exit 3",
                ENDS,
                "ended with exit status: 3; hint: run it by hand as the user of the service",
            ),
            ("printf canary; exec sleep 20", HANGS, "has not ended after 10 s"),
            ("printf canary; exec >&-; exec sleep 20", HANGS, "has not ended after 10 s"),
            ("yes canary", ENDS, "printed more than 4096 bytes"),
            ("printf '\\377'", ENDS, "it is not UTF-8"),
        ];
        for (script, limit, why) in refused {
            assert_eq!(printed(script, limit), Err(why.into()), "{script}");
        }
        let absent = KeySource::Command(vec!["/nowhere/canary".into(), "secret-argument".into()]);
        let why = absent.text().unwrap_err();
        assert!(why.starts_with("the command `/nowhere/canary` can't be started: No such file"), "{why}");
        assert_eq!(format!("{absent:?}"), r#"Command(Some("/nowhere/canary"))"#);
        assert_eq!(serde_json::to_string(&absent).unwrap(), r#"{"command":["/nowhere/canary","[redacted]"]}"#);
    }

    #[test]
    fn key_is_a_text_a_file_or_a_command() {
        #[derive(Debug, Deserialize)]
        struct Settings {
            keys: Vec<KeySource>,
        }
        let read = |text: &str| toml::from_str::<Settings>(text).map(|read| format!("{:?}", read.keys));
        assert_eq!(
            read(r#"keys = ["a:canary", { file = "/run/key" }, { command = ["pass", "show", "canary"] }]"#).unwrap(),
            r#"[[redacted], File("/run/key"), Command(Some("pass"))]"#
        );
        for wrong in ["[7]", "[{}]", "[{ fiel = 'x' }]", "[{ file = 'x', command = ['y'] }]", "[{ command = [] }]"] {
            let error = read(&format!("keys = {wrong}")).unwrap_err();
            assert!(error.message().contains("command"), "{wrong}: {}", error.message());
        }
    }
}
