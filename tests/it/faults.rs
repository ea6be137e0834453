//! Faults of processes, wires, servers, clocks, disks. After each fault the checker judges from the database alone, and
//! by what the other side has seen. `scripts/chaos.sh` runs the same for longer.

mod approved;
mod asked;
mod clock;
mod disk;
#[cfg(feature = "failpoints")]
mod failpoints;
mod granted;
mod harness;
mod killed;
mod payments;
mod poison;
mod redis;
mod shutdown;
mod stopped;
mod summarised;
mod summary_server;
mod turn_server;
mod turns;
mod wires;
mod write_lock;
