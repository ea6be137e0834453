//! The place to which a client has a run's stream. It goes along as the id of each event that is told once, so that a
//! client that comes back goes on from there, at any instance.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use uuid::Uuid;

use crate::domain::approval::proposal::canonical_hash;
use crate::domain::run::{RunState, StreamEvent};

/// No transcript has an entry of a larger number.
const MOST_ENTRIES: i64 = 1 << 48;
/// Events that are told before the transcript has them; more wait for it.
pub const MOST_AHEAD: usize = 64;
/// The number of an entry where none was told.
const NONE: &str = "-";

/// Everything that a client was told, as far as it is told once. As text: the entry, then each other part behind a dot
/// and with a letter of its own; parts that are not known are left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StreamPosition {
    /// The last entry of the transcript of which everything was told.
    pub seq: Option<i64>,
    /// The turn of the last answer of the model among these; 0 before the first.
    pub turn: i64,
    /// State of the run, with its attempt.
    pub state: Option<(RunState, i32)>,
    /// The newest approval that was told.
    pub approval: Option<Uuid>,
    /// The error that was told last.
    pub error: Option<Digest>,
    /// Events that were told before the whole of their entry was.
    pub ahead: Vec<EventKey>,
}

/// An event of a message: its turn, and a digest of its content. A turn that another instance does again may have
/// another content, which is another event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventKey {
    /// The model's turn.
    pub turn: i64,
    content: Digest,
}

/// The beginning of a SHA-256.
pub type Digest = u64;

/// The beginning of the hash of a value, which is the same once the value was stored.
pub fn digest_of(value: &Value) -> Digest {
    Digest::from_str_radix(&canonical_hash(value)[..16], 16).expect("a hash is hexadecimal")
}

impl EventKey {
    /// The key of an event of this turn.
    pub fn of(turn: i64, event: &StreamEvent) -> EventKey {
        EventKey { turn, content: digest_of(&serde_json::to_value(event).expect("a stream event is JSON")) }
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seq {
            Some(seq) => write!(to, "{seq}")?,
            None => to.write_str(NONE)?,
        }
        if self.turn > 0 {
            write!(to, ".t{}", self.turn)?;
        }
        if let Some((state, attempt)) = self.state {
            write!(to, ".s{}-{attempt}", state.as_str())?;
        }
        if let Some(approval) = self.approval {
            write!(to, ".a{}", approval.simple())?;
        }
        if let Some(error) = self.error {
            write!(to, ".x{error:016x}")?;
        }
        self.ahead.iter().try_for_each(|EventKey { turn, content }| write!(to, ".l{turn}-{content:016x}"))
    }
}

/// An id that is none of the stream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownPosition;

impl FromStr for StreamPosition {
    type Err = UnknownPosition;

    fn from_str(text: &str) -> Result<StreamPosition, UnknownPosition> {
        let mut parts = text.split('.');
        let mut position = StreamPosition::default();
        match parts.next() {
            Some(NONE) => {}
            seq => position.seq = Some(seq.and_then(number).ok_or(UnknownPosition)?),
        }
        for part in parts {
            position.read(part).ok_or(UnknownPosition)?;
        }
        Some(position).filter(|position| position.ahead.len() <= MOST_AHEAD).ok_or(UnknownPosition)
    }
}

impl StreamPosition {
    fn read(&mut self, part: &str) -> Option<()> {
        let (kind, value) = part.split_at_checked(1)?;
        match kind {
            "t" => self.turn = number(value)?,
            "s" => {
                let (state, attempt) = value.split_once('-')?;
                self.state = Some((RunState::parse(state)?, attempt.parse().ok()?));
            }
            "a" => self.approval = Some(Uuid::try_parse(value).ok()?),
            "x" => self.error = Some(Digest::from_str_radix(value, 16).ok()?),
            "l" => {
                let (turn, content) = value.split_once('-')?;
                let content = Digest::from_str_radix(content, 16).ok()?;
                self.ahead.push(EventKey { turn: number(turn)?, content });
            }
            _ => return None,
        }
        Some(())
    }
}

fn number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number| (0..=MOST_ENTRIES).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_read_back_as_it_was_written() {
        let key = |turn| EventKey::of(turn, &StreamEvent::MessageStart { turn });
        let whole = StreamPosition {
            seq: Some(12),
            turn: 5,
            state: Some((RunState::PendingApproval, 2)),
            approval: Some(Uuid::from_u128(7)),
            error: Some(digest_of(&Value::from("llm_timeout"))),
            ahead: vec![key(5), key(6)],
        };
        for position in [StreamPosition::default(), StreamPosition { seq: Some(0), ..Default::default() }, whole] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
    }

    #[test]
    fn only_an_id_of_the_stream_is_gone_on_from() {
        let of = |id: &str| id.parse::<StreamPosition>();
        assert_eq!(of("7").unwrap(), StreamPosition { seq: Some(7), ..Default::default() });
        assert_eq!(of(&MOST_ENTRIES.to_string()).unwrap().seq, Some(MOST_ENTRIES));
        let many = (0..=MOST_AHEAD).fold("7".to_owned(), |id, turn| format!("{id}.l{turn}-0"));
        for bad in [
            "",
            "x",
            "-1",
            "9223372036854775807",
            "9223372036854775808",
            "1e3",
            "7 ",
            "7.",
            "7.q1",
            "7.sasleep-1",
            "7.srunning",
            "7.a1",
            "7.l5",
            "7.é",
            &many,
        ] {
            assert_eq!(of(bad), Err(UnknownPosition), "{bad}");
        }
    }
}
