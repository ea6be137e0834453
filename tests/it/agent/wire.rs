//! Models over the wire: whole request bodies, answers in one piece and in the oddest pieces, what thinking models want
//! back, and every way to fail.

mod anthropic;
mod any_history;
pub mod fakes;
mod histories;
mod openai;
mod responses;
mod rules;
mod scenarios;
mod server;
mod thinking;
mod vendors;
