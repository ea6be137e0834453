//! Names to addresses. An address is never trusted before the rules have judged each address.

use std::io;
use std::net::IpAddr;

use futures::future::BoxFuture;

/// Looks names up.
pub trait Resolver: Send + Sync {
    /// Every address of `host`; an error when the name is unknown or nobody answers.
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The machine's own resolver.
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect()) })
    }
}
