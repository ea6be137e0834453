//! How much is measured.

use std::time::Duration;

/// Each has a default that takes a run of everything about a quarter of an hour.
#[derive(Debug, Clone, Copy)]
pub struct BenchSize {
    /// Everything small: a first look.
    pub quick: bool,
    /// Throughputs are measured so often, and the one in the middle counts.
    pub rounds: usize,
    /// Tasks that fire in a throughput.
    pub fires: usize,
    /// Queued runs of `drain`; five times as many of `drain_100k`.
    pub backlog: usize,
    /// Starts that are timed one after the other.
    pub starts: usize,
    /// How long the lone task is watched, a start a second.
    pub single_task_seconds: usize,
    /// Tasks that are stored while nothing, or a herd of them, is due.
    pub stored_tasks: usize,
    /// Runs that are stored while lists of them are read.
    pub stored_runs: usize,
    /// Facts that are stored while runs are told some of them.
    pub stored_facts: usize,
    /// Facts of the tenant that has the most, beside them.
    pub facts_of_one: usize,
    /// Tasks that are due at one instant, half of the stored ones at most.
    pub herd: usize,
    /// How long a service at rest is watched.
    pub idle_seconds: usize,
    /// Tasks that are made.
    pub creates: usize,
    /// Event tasks that there are.
    pub event_tasks: usize,
    /// Events of each throughput.
    pub events: usize,
    /// Events whose way to their start is timed, one after the other.
    pub event_samples: usize,
    /// Runs of `agent_32`.
    pub agent_runs: usize,
    /// How long the quiet tenant is watched, alone and beside others.
    pub neighbour_seconds: usize,
    /// Tasks of a kind that each hostile tenant has.
    pub hostile_tasks: usize,
}

impl Default for BenchSize {
    fn default() -> BenchSize {
        BenchSize {
            quick: false,
            rounds: 3,
            fires: 50_000,
            backlog: 20_000,
            starts: 500,
            single_task_seconds: 60,
            stored_tasks: 1_000_000,
            stored_runs: 1_000_000,
            stored_facts: 1_000_000,
            facts_of_one: 10_000,
            herd: 200_000,
            idle_seconds: 20,
            creates: 20_000,
            event_tasks: 10_000,
            events: 20_000,
            event_samples: 500,
            agent_runs: 2_000,
            neighbour_seconds: 30,
            hostile_tasks: 300,
        }
    }
}

impl BenchSize {
    /// Everything in about two minutes.
    pub fn quick() -> BenchSize {
        BenchSize {
            quick: true,
            rounds: 1,
            fires: 1_000,
            backlog: 500,
            starts: 10,
            single_task_seconds: 4,
            stored_tasks: 2_000,
            stored_runs: 2_000,
            stored_facts: 2_000,
            facts_of_one: 500,
            herd: 200,
            idle_seconds: 1,
            creates: 160,
            event_tasks: 200,
            events: 500,
            event_samples: 10,
            agent_runs: 64,
            neighbour_seconds: 3,
            hostile_tasks: 10,
        }
    }

    /// How long commits are counted.
    pub fn commit_time(&self) -> Duration {
        Duration::from_millis(if self.quick { 200 } else { 3000 })
    }

    /// Rows of a limit that writes 100 at once.
    pub fn rows(&self) -> usize {
        if self.quick { 1_000 } else { 50_000 }
    }

    /// How many of a burst's tasks there are.
    pub fn burst(&self, tasks: usize) -> usize {
        if self.quick { (tasks / 20).max(10) } else { tasks }
    }
}
