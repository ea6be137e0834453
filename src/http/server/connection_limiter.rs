//! How many connections are open, in all and per address, and whether there is room for another.
//!
//! An IPv6 address counts as its /64, which one customer is given whole.

use std::net::{IpAddr, Ipv6Addr};

use crate::base::limiter::{self, ConcurrencyLimiter, Limit};

/// The address that limits are kept by: an IPv4 address, or the /64 of an IPv6 one.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

/// Why there is no permit: all are taken, or this address has taken its share.
pub type ConnectionRefusal = limiter::LimitReached<IpAddr>;

/// Room for one connection, or for one request that comes through a proxy.
pub type ConnectionPermit = limiter::Permit<IpAddr>;

/// The limiter of the connections of one server.
#[derive(Debug, Clone)]
pub struct ConnectionLimiter {
    taken: ConcurrencyLimiter<IpAddr>,
    per_address: Limit,
}

impl ConnectionLimiter {
    /// A limiter of so many connections in all and of one address.
    pub fn new(all: usize, per_address: usize) -> ConnectionLimiter {
        ConnectionLimiter { taken: ConcurrencyLimiter::new(all), per_address: Limit::Fixed(per_address) }
    }

    /// A permit for a connection from `address`, given back when it is dropped.
    pub fn acquire(&self, address: IpAddr) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.taken.acquire([(origin(address), self.per_address)])
    }

    /// A permit for a connection of a trusted proxy: it is one of all, and counts for no address.
    pub fn acquire_for_proxy(&self) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.taken.acquire([])
    }

    /// A permit for a request that `address` makes through a trusted proxy, as long as it is under way: it counts for
    /// its address alone, because its connection is counted already.
    pub fn acquire_behind_proxy(&self, address: IpAddr) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.taken.acquire_of_keys([(origin(address), self.per_address)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_is_free_again_when_it_was_given_back() {
        let limiter = ConnectionLimiter::new(2, 1);
        let [ann, bob, eve] = [1, 2, 3].map(|n| IpAddr::from([10, 0, 0, n]));
        let first = limiter.acquire(ann).unwrap();
        assert_eq!(limiter.acquire(ann).unwrap_err(), ConnectionRefusal::Key(ann));
        let second = limiter.acquire(bob).unwrap();
        assert_eq!(limiter.acquire(eve).unwrap_err(), ConnectionRefusal::All);
        drop(first);
        drop(limiter.acquire(eve).unwrap());
        drop(second);
        assert!(limiter.taken.is_idle(), "an address without connections is forgotten");
    }

    #[test]
    fn proxy_counts_as_nobody_and_its_clients_each_for_themselves() {
        let limiter = ConnectionLimiter::new(3, 1);
        let [ann, bob] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let connections: Vec<ConnectionPermit> = (0..3).map(|_| limiter.acquire_for_proxy().unwrap()).collect();
        assert_eq!(limiter.acquire_for_proxy().unwrap_err(), ConnectionRefusal::All);
        let request = limiter.acquire_behind_proxy(ann).unwrap();
        assert_eq!(limiter.acquire_behind_proxy(ann).unwrap_err(), ConnectionRefusal::Key(ann));
        drop(limiter.acquire_behind_proxy(bob).unwrap());
        drop(request);
        drop(limiter.acquire_behind_proxy(ann).unwrap());
        assert_eq!(limiter.acquire(bob).unwrap_err(), ConnectionRefusal::All, "requests take no connection");
        drop(connections);
        assert!(limiter.taken.available() == 3 && limiter.taken.is_idle());
    }

    #[test]
    fn neighbours_of_one_ipv6_network_share_and_mapped_ipv4_is_ipv4() {
        let of = |text: &str| origin(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
