//! The master key changed while everything goes on: no credential is unreadable at any moment.

mod killed;
mod own_code;
mod rotation;
