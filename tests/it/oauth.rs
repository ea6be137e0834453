//! OAuth 2 against a real, certified provider: accounts are connected, renewed by one worker alone, taken back, and
//! connected again.

mod harness;
mod page;
mod provider_failures;
mod refresh;
mod runs;
