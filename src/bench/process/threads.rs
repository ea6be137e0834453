//! Times of the threads of a process, by the names of the threads: how long they ran, and how long they were ready to
//! run and waited for a processor.
//!
//! Linux counts both for each thread; elsewhere nothing is told. A thread that has ended is counted no more, so short
//! ones are missing.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

/// The times of the threads of a process so far.
pub struct ThreadTimes {
    read_at: Instant,
    /// By the number of the thread, with its name.
    threads: HashMap<OsString, (String, ThreadTime)>,
}

/// In nanoseconds; and how often it was given a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ThreadTime {
    ran: u64,
    waited: u64,
    turns: u64,
}

/// Use of the processors by threads of one name, or by all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ThreadUse {
    pub threads: usize,
    /// Processor time, in seconds a second.
    pub ran: f64,
    /// Time for which they were ready and had no processor, in seconds a second.
    pub waited: f64,
    /// How often they were given a processor, a second.
    pub turns: f64,
}

impl ThreadTimes {
    /// Of the threads that a process has now. `None`: the system does not count them, or the process has ended.
    pub fn read(process: u32) -> Option<ThreadTimes> {
        let read_at = Instant::now();
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten();
        // one that has ended meanwhile has no files any more
        let threads: HashMap<_, _> =
            threads.filter_map(|thread| Some((thread.file_name(), of_thread(&thread.path())?))).collect();
        let is_counted = threads.values().any(|(_, time)| time.ran > 0);
        is_counted.then_some(ThreadTimes { read_at, threads })
    }

    /// The use of the processors since an earlier look at the same process, by the names of threads.
    pub fn since(&self, before: &ThreadTimes) -> BTreeMap<String, ThreadUse> {
        let seconds = (self.read_at - before.read_at).as_secs_f64().max(1e-9);
        let mut groups: BTreeMap<String, (usize, ThreadTime)> = BTreeMap::new();
        for (number, (name, time)) in &self.threads {
            // one that was not there began meanwhile
            let earlier = before.threads.get(number).map_or(ThreadTime::default(), |(_, time)| *time);
            let (threads, sum) = groups.entry(name.clone()).or_default();
            *threads += 1;
            *sum = sum.plus(time.minus(earlier));
        }
        groups.into_iter().map(|(name, (threads, time))| (name, time.per_second(threads, seconds))).collect()
    }
}

impl ThreadTime {
    /// By the three numbers of `schedstat`: nanoseconds that it ran and waited, and its turns.
    fn read(numbers: &str) -> Option<ThreadTime> {
        let mut numbers = numbers.split_whitespace().map(|number| number.parse().ok());
        Some(ThreadTime { ran: numbers.next()??, waited: numbers.next()??, turns: numbers.next()?? })
    }

    fn plus(self, other: ThreadTime) -> ThreadTime {
        ThreadTime { ran: self.ran + other.ran, waited: self.waited + other.waited, turns: self.turns + other.turns }
    }

    fn minus(self, earlier: ThreadTime) -> ThreadTime {
        ThreadTime {
            ran: self.ran.saturating_sub(earlier.ran),
            waited: self.waited.saturating_sub(earlier.waited),
            turns: self.turns.saturating_sub(earlier.turns),
        }
    }

    fn per_second(self, threads: usize, seconds: f64) -> ThreadUse {
        ThreadUse {
            threads,
            ran: self.ran as f64 / 1e9 / seconds,
            waited: self.waited as f64 / 1e9 / seconds,
            turns: self.turns as f64 / seconds,
        }
    }
}

impl ThreadUse {
    /// The time from ready to running, in seconds, on average; 0 where nothing ran.
    pub fn wait(&self) -> f64 {
        if self.turns > 0.0 { self.waited / self.turns } else { 0.0 }
    }
}

/// The name of a thread without a number at its end, and its times; `None` where it has ended, or the system does not
/// count them.
fn of_thread(thread: &Path) -> Option<(String, ThreadTime)> {
    let name = std::fs::read_to_string(thread.join("comm")).ok()?;
    let time = ThreadTime::read(&std::fs::read_to_string(thread.join("schedstat")).ok()?)?;
    Some((without_number(&name).to_owned(), time))
}

fn without_number(name: &str) -> &str {
    let name = name.trim();
    match name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-') {
        "" => name,
        kept => kept,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn times(read_at: Instant, threads: &[(&str, &str, [u64; 3])]) -> ThreadTimes {
        let thread = |(number, name, [ran, waited, turns]): &(&str, &str, [u64; 3])| {
            let time = ThreadTime { ran: *ran, waited: *waited, turns: *turns };
            (OsString::from(number), ((*name).to_owned(), time))
        };
        ThreadTimes { read_at, threads: threads.iter().map(thread).collect() }
    }

    #[test]
    fn threads_of_one_name_are_added_up_and_those_that_ended_are_left_out() {
        let began = Instant::now();
        let before = times(began, &[("1", "a", [500, 100, 1]), ("2", "a", [0, 0, 0]), ("9", "ended", [7, 7, 7])]);
        let now = times(
            began + Duration::from_secs(2),
            &[
                ("1", "a", [1_000_000_500, 4_000_100, 3]),
                ("2", "a", [0, 0, 0]),
                ("3", "began", [500_000_000, 1_000_000_000, 1_000]),
            ],
        );
        let groups = now.since(&before);
        assert_eq!(groups["a"], ThreadUse { threads: 2, ran: 0.5, waited: 0.002, turns: 1.0 });
        assert_eq!(groups["began"], ThreadUse { threads: 1, ran: 0.25, waited: 0.5, turns: 500.0 });
        assert_eq!((groups.len(), groups["began"].wait(), ThreadUse::default().wait()), (2, 0.001, 0.0));
    }

    #[test]
    fn numbers_and_names_are_read_as_linux_writes_them() {
        let read = ThreadTime::read("148853485 293823616 438\n");
        assert_eq!(read, Some(ThreadTime { ran: 148_853_485, waited: 293_823_616, turns: 438 }));
        assert_eq!((ThreadTime::read(""), ThreadTime::read("1 2")), (None, None));
        let names = ["computing\n", "sqlx-sqlite-wor\n", "worker-12\n", "42\n"].map(without_number);
        assert_eq!(names, ["computing", "sqlx-sqlite-wor", "worker", "42"]);
    }

    #[test]
    fn busy_thread_of_this_process_has_run() {
        let Some(before) = ThreadTimes::read(std::process::id()) else { return };
        let busy = std::thread::Builder::new().name("busy-7".into()).spawn(|| {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(50) {}
            ThreadTimes::read(std::process::id())
        });
        let during = busy.unwrap().join().unwrap().expect("times of a process that was counted before");
        let busy = during.since(&before)["busy"];
        assert!(busy.threads == 1 && busy.ran > 0.0, "{busy:?}");
    }
}
