//! Commands that ask a service over HTTP, a file for each noun.

pub(super) mod agent;
pub(super) mod approval;
pub(super) mod audit;
pub(super) mod condition;
pub(super) mod conversation;
pub(super) mod credential;
pub(super) mod delivery;
pub(super) mod event;
pub(super) mod login;
pub(super) mod mcp;
pub(super) mod notify;
pub(super) mod pipeline;
pub(super) mod recipient;
pub(super) mod run;
pub(super) mod skill;
pub(super) mod stats;
pub(super) mod task;
pub(super) mod tenant;
pub(super) mod token;
pub(super) mod tool;
