//! Events of the hostile tenants: a body that is made once, and that has new ids each time that it is sent.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// Stands for an id in the body, as long as each of them.
const ID: &str = "################";

/// A body of events.
pub struct PreparedEvents {
    body: Vec<u8>,
    /// Where the ids are.
    ids: Vec<usize>,
    /// The next id.
    next: AtomicU64,
}

impl PreparedEvents {
    /// Of events that have everything but an id.
    pub fn of(events: Vec<Value>) -> PreparedEvents {
        let with_id = |mut event: Value| {
            event["id"] = json!(ID);
            event
        };
        let body = Value::from_iter(events.into_iter().map(with_id)).to_string();
        let ids = body.match_indices(ID).map(|(at, _)| at).collect();
        PreparedEvents { body: body.into_bytes(), ids, next: AtomicU64::new(0) }
    }

    /// The body with ids that it never had before.
    pub fn body(&self) -> Vec<u8> {
        let first = self.next.fetch_add(self.ids.len() as u64, Ordering::Relaxed);
        let mut body = self.body.clone();
        for (id, at) in (first..).zip(&self.ids) {
            body[*at..at + ID.len()].copy_from_slice(format!("{id:0length$}", length = ID.len()).as_bytes());
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_events_have_one_id_and_all_else_stays() {
        let prepared = PreparedEvents::of(vec![json!({ "source": "a" }), json!({ "source": "b", "data": [1] })]);
        let sent: Vec<Value> =
            (0..2).flat_map(|_| serde_json::from_slice::<Vec<Value>>(&prepared.body()).unwrap()).collect();
        let ids: Vec<&str> = sent.iter().map(|event| event["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["0000000000000000", "0000000000000001", "0000000000000002", "0000000000000003"]);
        let sources: Vec<&str> = sent.iter().map(|event| event["source"].as_str().unwrap()).collect();
        assert_eq!((sources, &sent[3]["data"]), (vec!["a", "b", "a", "b"], &json!([1])));
    }
}
