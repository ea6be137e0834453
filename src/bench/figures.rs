//! The figures, each measured by a file of its own.

pub(super) mod agent;
pub(super) mod agent_wait;
pub(super) mod burst;
pub(super) mod create;
pub(super) mod dashboard;
pub(super) mod drain;
pub(super) mod events;
pub(super) mod everything;
pub(super) mod fire;
pub(super) mod herd;
pub(super) mod instances;
pub(super) mod lists;
pub(super) mod neighbours;
pub(super) mod next_fire;
pub(super) mod pipeline;
pub(super) mod recall;
pub(super) mod rest;
pub(super) mod start;
pub(super) mod webhook;
pub(super) mod write;
