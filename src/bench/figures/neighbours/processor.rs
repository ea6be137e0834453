//! How much of a phase is the wait for a processor: of the threads of the service, by their names, and of the hostile
//! tenants' own programs.

use std::collections::BTreeMap;

use crate::bench::BenchFigure;
use crate::bench::figures::neighbours::clients;
use crate::bench::process::service::BenchService;
use crate::bench::process::threads::{ThreadTimes, ThreadUse};

/// Times at the beginning of a phase; `None` where the system does not count them.
pub struct ProcessorWatch(Option<ProcessorTimes>);

/// At the service's process, and at this one, which has the hostile tenants' programs in it.
struct ProcessorTimes {
    service: (u32, ThreadTimes),
    here: ThreadTimes,
}

/// Use of the processors in a phase.
pub struct ProcessorPhase {
    /// By the names of threads.
    service: BTreeMap<String, ThreadUse>,
    clients: ThreadUse,
}

impl ProcessorWatch {
    /// A phase begins.
    pub fn start(service: &BenchService) -> ProcessorWatch {
        ProcessorWatch(service.id().and_then(ProcessorTimes::now))
    }

    /// The phase has ended.
    pub fn phase(self) -> Option<ProcessorPhase> {
        let before = self.0?;
        let now = ProcessorTimes::now(before.service.0)?;
        let here = now.here.since(&before.here);
        Some(ProcessorPhase {
            service: now.service.1.since(&before.service.1),
            clients: here.get(clients::NAME).copied().unwrap_or_default(),
        })
    }
}

impl ProcessorTimes {
    fn now(service: u32) -> Option<ProcessorTimes> {
        let here = ThreadTimes::read(std::process::id())?;
        Some(ProcessorTimes { service: (service, ThreadTimes::read(service)?), here })
    }
}

impl ProcessorPhase {
    /// The use by all threads of the service.
    fn of_service(&self) -> ThreadUse {
        self.service.values().fold(ThreadUse::default(), |sum, group| ThreadUse {
            threads: sum.threads + group.threads,
            ran: sum.ran + group.ran,
            waited: sum.waited + group.waited,
            turns: sum.turns + group.turns,
        })
    }

    fn annotate(&self, phase: &str, figure: BenchFigure) -> BenchFigure {
        let all = self.of_service();
        let figure = told(figure, &format!("{phase}, all"), &all).with_part(
            format!("{phase}, all: wait of each turn, mean"),
            "ms",
            all.wait() * 1000.0,
        );
        let figure = self
            .service
            .iter()
            .fold(figure, |figure, (name, group)| told(figure, &format!("{phase}, threads `{name}`"), group));
        told(figure, &format!("{phase}, the hostile tenants' own programs"), &self.clients)
    }
}

fn told(figure: BenchFigure, threads: &str, group: &ThreadUse) -> BenchFigure {
    let figure = figure.with_part(format!("{threads}: processor time"), "s/s", group.ran);
    figure.with_part(format!("{threads}: waited"), "s/s", group.waited)
}

/// Both phases beside each other, as plain values.
pub fn figure(name: String, alone: &ProcessorPhase, beside: &ProcessorPhase) -> BenchFigure {
    let what =
        "threads of the service beside the hostile tenants: time that they were ready and waited for a processor";
    let all = beside.of_service();
    let figure = BenchFigure::new(name, what, "s/s", all.threads, all.waited);
    beside.annotate("beside", alone.annotate("alone", figure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_stand_beside_each_other_with_all_threads_added_up() {
        let group = |threads, ran, waited| ThreadUse { threads, ran, waited, turns: 100.0 };
        let phase = |waited: f64| ProcessorPhase {
            service: BTreeMap::from([
                ("computing".to_owned(), group(2, 0.5, waited)),
                ("requests".to_owned(), group(1, 0.25, 0.5)),
            ]),
            clients: group(2, 0.125, 3.0),
        };
        let figure = figure("neighbours.processor".into(), &phase(0.0), &phase(1.5));
        assert_eq!((figure.of, figure.value, figure.limit, figure.met), (3, 2.0, None, None));
        let part = |name: &str| figure.parts.iter().find(|part| part.name == name).map(|part| part.value);
        for (name, value) in [
            ("alone, all: processor time", 0.75),
            ("alone, all: waited", 0.5),
            ("beside, all: waited", 2.0),
            ("beside, all: wait of each turn, mean", 10.0),
            ("beside, threads `computing`: waited", 1.5),
            ("beside, threads `requests`: processor time", 0.25),
            ("beside, the hostile tenants' own programs: waited", 3.0),
        ] {
            assert_eq!(part(name), Some(value), "{name}");
        }
    }
}
