//! Answers that go on: live messages and the streams of runs.

pub mod limiter;
pub mod live;
pub mod response;
pub mod run;
