//! How many connections are open, in all and per address, and whether there is room for another.
//!
//! In memory only. An IPv6 address counts as its /64, which one customer is given whole.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// The address that limits are kept by: an IPv4 address, or the /64 of an IPv6 one.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
    }
}

/// Why there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSeat {
    /// All are taken.
    Full,
    /// This address has taken its share.
    AddressFull,
}

/// The seats of one server.
#[derive(Debug, Clone)]
pub struct Seats(Arc<Room>);

#[derive(Debug)]
struct Room {
    all: usize,
    per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Seats {
    /// A limiter of so many connections in all and of one address.
    pub fn new(all: usize, per_address: usize) -> Seats {
        Seats(Arc::new(Room { all, per_address, taken: Mutex::default() }))
    }

    /// A seat for a connection from `address`, given back when it is dropped.
    pub fn take(&self, address: IpAddr) -> Result<Seat, NoSeat> {
        let address = origin(address);
        let mut taken = self.0.taken.lock().expect("seat lock");
        if taken.all >= self.0.all {
            return Err(NoSeat::Full);
        }
        let here = taken.by_address.entry(address).or_default();
        if *here >= self.0.per_address {
            return Err(NoSeat::AddressFull);
        }
        *here += 1;
        taken.all += 1;
        Ok(Seat { room: self.0.clone(), address: Some(address), is_connection: true })
    }

    /// A seat for a connection of a trusted proxy: it is one of all, and counts for no address.
    pub fn take_for_proxy(&self) -> Result<Seat, NoSeat> {
        let mut taken = self.0.taken.lock().expect("seat lock");
        if taken.all >= self.0.all {
            return Err(NoSeat::Full);
        }
        taken.all += 1;
        Ok(Seat { room: self.0.clone(), address: None, is_connection: true })
    }

    /// A seat for a request that `address` makes through a trusted proxy, as long as it is under way.
    pub fn take_in_proxy(&self, address: IpAddr) -> Result<Seat, NoSeat> {
        let address = origin(address);
        let mut taken = self.0.taken.lock().expect("seat lock");
        let here = taken.by_address.entry(address).or_default();
        if *here >= self.0.per_address {
            return Err(NoSeat::AddressFull);
        }
        *here += 1;
        Ok(Seat { room: self.0.clone(), address: Some(address), is_connection: false })
    }
}

/// Room for one connection, or for one request that comes through a proxy.
#[derive(Debug)]
pub struct Seat {
    room: Arc<Room>,
    /// `None`: a connection of a proxy, which counts as nobody's.
    address: Option<IpAddr>,
    /// A request counts for its address alone: its connection is counted already.
    is_connection: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock().expect("seat lock");
        taken.all -= usize::from(self.is_connection);
        let Some(address) = self.address else { return };
        if let Some(here) = taken.by_address.get_mut(&address) {
            *here -= 1;
            if *here == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_free_again_when_it_was_given_back() {
        let seats = Seats::new(2, 1);
        let (ann, bob, eve) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), [10, 0, 0, 3].into());
        let first = seats.take(ann).unwrap();
        assert_eq!(seats.take(ann).unwrap_err(), NoSeat::AddressFull);
        let _second = seats.take(bob).unwrap();
        assert_eq!(seats.take(eve).unwrap_err(), NoSeat::Full);
        drop(first);
        drop(seats.take(eve).unwrap());
        assert_eq!(seats.0.taken.lock().unwrap().by_address.len(), 1, "an address without connections is forgotten");
    }

    #[test]
    fn proxy_counts_as_nobody_and_its_clients_each_for_themselves() {
        let seats = Seats::new(3, 1);
        let (ann, bob) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let connections: Vec<Seat> = (0..3).map(|_| seats.take_for_proxy().unwrap()).collect();
        assert_eq!(seats.take_for_proxy().unwrap_err(), NoSeat::Full);
        let request = seats.take_in_proxy(ann).unwrap();
        assert_eq!(seats.take_in_proxy(ann).unwrap_err(), NoSeat::AddressFull);
        drop(seats.take_in_proxy(bob).unwrap());
        drop(request);
        drop(seats.take_in_proxy(ann).unwrap());
        assert_eq!(seats.take(bob).unwrap_err(), NoSeat::Full, "requests take no connection");
        drop(connections);
        let taken = seats.0.taken.lock().unwrap();
        assert_eq!((taken.all, taken.by_address.len()), (0, 0));
    }

    #[test]
    fn neighbours_of_one_ipv6_network_share_and_mapped_ipv4_is_ipv4() {
        let of = |text: &str| origin(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
