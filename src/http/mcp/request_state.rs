//! The `requestState` of a call that waits for a run: which run, and what the client was asked. The client keeps it and
//! hands it back, to any instance; nothing is kept here. It is good for the token that it was made for.

use uuid::Uuid;

use crate::http::mcp::call::McpCall;
use crate::ports::vault::Vault;

/// The longest state that is read, in bytes.
pub const STATE_BYTES: usize = 2_048;
/// Purpose of its tag.
const PURPOSE: &str = "mcp-wait";

/// How far a call that waits for a run has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitState {
    /// The run.
    pub run: Uuid,
    /// The keys of the requests that the client was sent.
    pub asked: Vec<String>,
}

impl WaitState {
    /// The state as it is sent.
    pub fn write(&self, call: &McpCall) -> String {
        self.written(&call.state.vault, call.caller.hash().as_bytes())
    }

    /// Reads what [`WaitState::write`] made for this caller.
    pub fn read(call: &McpCall, written: &str) -> Option<WaitState> {
        WaitState::of(&call.state.vault, call.caller.hash().as_bytes(), written)
    }

    fn written(&self, vault: &Vault, token: &[u8; 32]) -> String {
        let text = format!("{}|{}", self.run.simple(), self.asked.join(","));
        let tag = vault.tag(PURPOSE, &subject(&text, token));
        format!("{text}.{tag}")
    }

    fn of(vault: &Vault, token: &[u8; 32], written: &str) -> Option<WaitState> {
        let (text, tag) = written.rsplit_once('.').filter(|_| written.len() <= STATE_BYTES)?;
        if !vault.is_tag(PURPOSE, &subject(text, token), tag) {
            return None;
        }
        let (run, asked) = text.split_once('|')?;
        let asked = asked.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        Some(WaitState { run: Uuid::try_parse(run).ok()?, asked })
    }
}

fn subject(text: &str, token: &[u8; 32]) -> String {
    format!("{text}|{}", hex::encode(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::mcp::questions::MOST_REQUESTS;
    use crate::ports::vault::fixture::{NEW, OLD, vault};

    const TOKEN: [u8; 32] = [7; 32];

    fn state(asked: usize) -> WaitState {
        let asked = (0..asked as u128).map(|number| format!("approval:{}", Uuid::from_u128(number))).collect();
        WaitState { run: Uuid::from_u128(9), asked }
    }

    #[test]
    fn state_is_read_back_by_its_own_caller_alone() {
        let vault = vault(&[OLD]);
        for state in [state(0), state(1), state(MOST_REQUESTS)] {
            let written = state.written(&vault, &TOKEN);
            assert_eq!(WaitState::of(&vault, &TOKEN, &written), Some(state));
            assert_eq!(WaitState::of(&vault, &[8; 32], &written), None, "another's");
        }
    }

    #[test]
    fn state_that_was_tampered_with_is_refused() {
        let one = vault(&[OLD]);
        let written = state(2).written(&one, &TOKEN);
        let (text, tag) = written.rsplit_once('.').unwrap();
        let other_run = written.replacen('9', "8", 1);
        assert_ne!(other_run, written);
        let fewer = format!("{}.{tag}", text.split_once(',').unwrap().0);
        for made_up in [other_run.as_str(), &fewer, "", ".", text, &written[1..], &format!("{written}0")] {
            assert_eq!(WaitState::of(&one, &TOKEN, made_up), None, "{made_up}");
        }
        assert_eq!(WaitState::of(&vault(&[NEW]), &TOKEN, &written), None, "another service's");
        assert!(WaitState::of(&vault(&[NEW, OLD]), &TOKEN, &written).is_some(), "its key is still there");
    }

    #[test]
    fn state_is_read_at_its_longest_and_refused_beyond() {
        let vault = vault(&[OLD]);
        assert!(state(MOST_REQUESTS).written(&vault, &TOKEN).len() < STATE_BYTES, "all that is asked has room");
        let of_length = |bytes: usize| {
            let empty = WaitState { run: Uuid::from_u128(9), asked: vec![String::new()] };
            let filling = "k".repeat(bytes - empty.written(&vault, &TOKEN).len());
            WaitState { asked: vec![filling], ..empty }.written(&vault, &TOKEN)
        };
        assert_eq!(of_length(STATE_BYTES).len(), STATE_BYTES);
        assert!(WaitState::of(&vault, &TOKEN, &of_length(STATE_BYTES)).is_some());
        assert_eq!(WaitState::of(&vault, &TOKEN, &of_length(STATE_BYTES + 1)), None);
    }
}
