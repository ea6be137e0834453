//! MCP servers as processes of this machine: their supervisor, their input and output, and what they complain of.
//!
//! A server is spoken to in lines over its standard input and output. Whatever it writes costs no more than a bound
//! allows: [`bounded_lines`] holds for its answers, [`stderr_tail`] for the rest. One that reads nothing any more is
//! given up by [`watched_input`].

pub mod bounded_lines;
pub mod process;
pub mod stderr_tail;
pub mod supervisor;
pub mod watched_input;
