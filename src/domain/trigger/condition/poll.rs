//! The poll of a condition: an address, a tool, a query, a key. Data only; `crate::ports::poll` acts on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::field::one_of;
use crate::base::invalid::null_is_absent;
use crate::base::words::{is_default, words};

one_of! {
    /// The source to poll: one of these.
    #[serde(deny_unknown_fields)]
    pub enum PollSpec as "Poll" {
        /// A GET of an address.
        Http(HttpPoll) = http,
        /// A call of a read-only tool.
        Tool(ToolPoll) = tool,
        /// A query of a configured SQL source.
        Sql(SqlPoll) = sql,
        /// A read of a configured Redis.
        Redis(RedisPoll) = redis,
    }
}

words! {
    /// How an address is asked.
    #[derive(Default, utoipa::ToSchema)]
    pub enum PollMethod {
        /// The body of the answer is the value.
        #[default]
        Get = "GET",
        /// Status and headers of the answer are the value.
        Head = "HEAD",
    }
}

/// An address. A status of 2xx is an answer, any other a failing poll. The value is the body: as JSON where it is
/// JSON, else as text; null where it is empty. Of HEAD it is `{"status", "headers"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpPoll {
    /// Address to poll.
    #[schema(example = "https://api.example.org/price")]
    pub url: String,
    /// Method of the request.
    #[serde(default, deserialize_with = "null_is_absent", skip_serializing_if = "is_default")]
    #[schema(required = false)]
    pub method: PollMethod,
    /// Sent along; none that holds a secret belongs here, for they are shown with the task.
    #[serde(default, deserialize_with = "null_is_absent", skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub headers: BTreeMap<String, String>,
    /// A credential of the tenant's that it is sent with: `service`, or `service/account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false, example = "flights")]
    pub credential: Option<String>,
}

/// A tool that reads. The value is what it answers: as JSON where it is JSON, else as text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolPoll {
    /// Its category is `read` or `analysis`, and it needs no approval.
    #[schema(example = "http_request")]
    pub name: String,
    /// Arguments of the tool.
    #[serde(default, deserialize_with = "null_is_absent", skip_serializing_if = "Map::is_empty")]
    #[schema(required = false, value_type = Object)]
    pub args: Map<String, Value>,
}

/// A query of a source that the operator has named in `[poll.sql]`. The value is `{"rows": [{…}], "count": 1,
/// "scalar": …}`, at most 1,000 rows; `scalar` is the value where there is one row of one column, else null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlPoll {
    /// Name of the source in `[poll.sql]`.
    #[schema(example = "shop")]
    pub source: String,
    /// One statement that begins with `select`, `with` or `values`; it is run in a read-only transaction.
    #[schema(example = "select count(*) as open from orders where state = 'open'")]
    pub query: String,
}

words! {
    /// How a key is read.
    #[derive(Default, utoipa::ToSchema)]
    pub enum RedisRead {
        /// As its type says: `get`, `hgetall`, `llen`, `scard`, `zcard` or `xlen`.
        #[default]
        Auto = "auto",
        /// The text.
        Get = "get",
        /// The hash, as an object.
        Hgetall = "hgetall",
        /// The length of the list.
        Llen = "llen",
        /// The size of the set.
        Scard = "scard",
        /// The size of the sorted set.
        Zcard = "zcard",
        /// The length of the stream.
        Xlen = "xlen",
        /// True or false.
        Exists = "exists",
    }
}

/// A key of a source that the operator has named in `[poll.redis]`. A text is the value, as JSON where it is JSON; a
/// hash is an object of such; of lists, sets and streams it is the length. A key that is not there is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisPoll {
    /// Name of the source in `[poll.redis]`.
    #[schema(example = "prices")]
    pub source: String,
    /// Begins with one of the prefixes that the source allows.
    #[schema(example = "price:BTC")]
    pub key: String,
    /// The command and its key.
    #[serde(default, deserialize_with = "null_is_absent", skip_serializing_if = "is_default")]
    #[schema(required = false)]
    pub read: RedisRead,
}
