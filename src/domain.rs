//! The domain: data and transitions, without I/O and without `await`.

pub mod actor;
pub mod approval;
pub mod budget;
pub mod conversation;
pub mod credential;
pub mod data_file;
pub mod event;
pub mod halt;
pub mod memory;
pub mod notification;
pub mod quota;
pub mod run;
pub mod task;
pub mod trigger;
