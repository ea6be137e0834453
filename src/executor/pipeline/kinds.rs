//! The list of the kinds of steps.

use crate::executor::pipeline::kind::ReadKind;
use crate::executor::pipeline::steps::{agent, filter, http, llm, map, notify, publish, store, tool};

/// The kinds, `for_each` aside, which is made of them.
pub const KINDS: [(&str, ReadKind); 9] = [
    ("http", http::read),
    ("tool", tool::read),
    ("filter", filter::read),
    ("map", map::read),
    ("publish", publish::read),
    ("notify", notify::read),
    ("store", store::read),
    ("agent", agent::read),
    ("llm", llm::read),
];
