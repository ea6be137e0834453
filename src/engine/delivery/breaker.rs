//! Circuit breakers: a channel that fails again and again is left alone for a while, and then tried by one message.
//!
//! They live in this process and hold nothing that matters: after a restart a sick channel is found out anew. Where
//! users name the hosts (webhooks, push services), each host has a breaker of its own, so that one sick receiver delays
//! nobody else.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use url::Url;

use crate::base::clock::to_delta;
use crate::base::metrics::Metrics;
use crate::domain::notification::{PushAddress, Recipient};
use crate::engine::delivery::attempt::{LEASE, Signal};

/// Failures in a row that open a breaker.
const FAILURES: u32 = 5;
/// How long it stays open at first, and at the longest; doubled by each probe that fails.
const FIRST_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// When those come again that find a probe under way.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// Hosts that are remembered. Past it those are forgotten that are only suspected, and those that nobody has asked for
/// since long; where that makes no room, another host has no breaker.
const HOSTS: usize = 10_000;
/// After so long beyond its time, nobody writes to an open one any more.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);

/// The operator's own ntfy server, beside hosts that users name.
const OPERATORS: &str = "ntfy";

/// The channel or address that a breaker guards.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CircuitTarget {
    /// Name of the channel.
    pub channel: String,
    /// Where users name it: the host, with the port if it is an odd one; several joined by `+`.
    pub host: Option<String>,
}

/// A target that is left alone for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenCircuit {
    /// When it is worth asking again.
    pub until: DateTime<Utc>,
    /// Over how much time those who wait are to be spread.
    pub spread: Duration,
}

/// The breakers of this process. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct Breakers(Arc<Shared>);

struct Shared {
    circuits: Mutex<HashMap<CircuitTarget, Circuit>>,
    open: Family<CircuitLabel, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CircuitLabel {
    channel: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Circuit {
    failures: u32,
    open: Option<Backoff>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backoff {
    wait: Duration,
    until: DateTime<Utc>,
    /// Until when the probe that is under way is believed to be.
    probing: Option<DateTime<Utc>>,
}

/// The change that a signal made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CircuitChange {
    Opened,
    Recovered,
}

impl CircuitTarget {
    /// The target through which a channel reaches a recipient.
    pub fn for_recipient(channel: &str, recipient: Option<&Recipient>) -> CircuitTarget {
        let addresses = recipient.map(|recipient| &recipient.addresses);
        let host = |url: &str| {
            let url = Url::parse(url).ok()?;
            let host = url.host_str()?;
            Some(url.port().map_or(host.to_owned(), |port| format!("{host}:{port}")))
        };
        let host = match (channel, addresses) {
            ("webhook", Some(addresses)) => addresses.webhook.as_ref().and_then(|webhook| host(&webhook.url)),
            ("push", Some(addresses)) => {
                let named = |address: &PushAddress| match address {
                    PushAddress::Ntfy { server, .. } => server.as_deref().and_then(host),
                    PushAddress::WebPush { endpoint, .. } => host(endpoint),
                };
                let hosts: BTreeSet<Option<String>> = addresses.push.iter().map(named).collect();
                let named = hosts.iter().any(Option::is_some);
                let hosts = hosts.into_iter().map(|host| host.unwrap_or_else(|| OPERATORS.to_owned()));
                named.then(|| hosts.collect::<Vec<_>>().join("+"))
            }
            _ => None,
        };
        CircuitTarget { channel: channel.to_owned(), host }
    }
}

impl std::fmt::Display for CircuitTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Some(host) => write!(f, "`{}` to {host}", self.channel),
            None => write!(f, "`{}`", self.channel),
        }
    }
}

impl Breakers {
    /// Breakers that are all closed, with their gauge.
    pub fn new(metrics: &Metrics) -> Breakers {
        let help = "Channels, or hosts of one, that are left alone for now";
        let open = metrics.registered("channel_breakers_open", help, Family::default());
        Breakers(Arc::new(Shared { circuits: Mutex::default(), open }))
    }

    /// Whether a message may go there now. A caller that is admitted has to report the outcome.
    pub fn admit(&self, target: &CircuitTarget, now: DateTime<Utc>) -> Result<(), OpenCircuit> {
        let mut circuits = self.0.circuits.lock().expect("breakers");
        circuits.get_mut(target).map_or(Ok(()), |circuit| circuit.admit(now))
    }

    fn evict_closed(&self, circuits: &mut HashMap<CircuitTarget, Circuit>, now: DateTime<Utc>) {
        circuits.retain(|target, circuit| {
            let asked_for = circuit.open.is_some_and(|open| now < open.until + to_delta(FORGOTTEN));
            if circuit.open.is_some() && !asked_for {
                self.0.open.get_or_create(&CircuitLabel { channel: target.channel.clone() }).dec();
            }
            asked_for
        });
    }

    /// How it went. A change is said in the log once.
    pub fn report(&self, target: &CircuitTarget, signal: Signal, now: DateTime<Utc>) {
        let mut circuits = self.0.circuits.lock().expect("breakers");
        if signal == Signal::Ill && !circuits.contains_key(target) {
            if circuits.len() >= HOSTS {
                self.evict_closed(&mut circuits, now);
            }
            if circuits.len() < HOSTS {
                circuits.insert(target.clone(), Circuit::default());
            }
        }
        let Some(circuit) = circuits.get_mut(target) else { return };
        let change = circuit.report(signal, now);
        let wait = circuit.open.map(|open| open.wait.as_secs());
        if *circuit == Circuit::default() {
            circuits.remove(target);
        }
        drop(circuits);
        let gauge = self.0.open.get_or_create(&CircuitLabel { channel: target.channel.clone() });
        match change {
            Some(CircuitChange::Opened) => {
                gauge.inc();
                tracing::warn!(
                    channel = target.channel,
                    host = target.host,
                    wait,
                    "a channel fails, it is left alone for now"
                );
            }
            Some(CircuitChange::Recovered) => {
                gauge.dec();
                tracing::info!(channel = target.channel, host = target.host, "a channel works again");
            }
            None => {}
        }
    }
}

impl Circuit {
    fn admit(&mut self, now: DateTime<Utc>) -> Result<(), OpenCircuit> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if now < open.until {
            return Err(OpenCircuit { until: open.until, spread: open.wait });
        }
        if open.probing.is_some_and(|until| now < until) {
            return Err(OpenCircuit { until: now + to_delta(PROBE_WAIT), spread: PROBE_WAIT });
        }
        // a probe that never tells how it went is followed by another
        open.probing = Some(now + to_delta(LEASE));
        Ok(())
    }

    fn report(&mut self, signal: Signal, now: DateTime<Utc>) -> Option<CircuitChange> {
        match (signal, &mut self.open) {
            (Signal::Well, open) => {
                let was_open = open.is_some();
                *self = Circuit::default();
                was_open.then_some(CircuitChange::Recovered)
            }
            (Signal::Ill, None) => {
                self.failures += 1;
                let opens = self.failures >= FAILURES;
                if opens {
                    self.open = Some(Backoff { wait: FIRST_WAIT, until: now + to_delta(FIRST_WAIT), probing: None });
                }
                opens.then_some(CircuitChange::Opened)
            }
            (Signal::Ill, Some(open)) => {
                // what was under way when it opened says nothing new
                if open.probing.take().is_some() {
                    open.wait = (open.wait * 2).min(LONGEST_WAIT);
                    open.until = now + to_delta(open.wait);
                }
                None
            }
            (Signal::Silent, open) => {
                if let Some(open) = open {
                    open.probing = None;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::domain::notification::{Addresses, WebhookAddress};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn target(host: &str) -> CircuitTarget {
        CircuitTarget { channel: "webhook".into(), host: Some(host.into()) }
    }

    fn opened() -> (Breakers, CircuitTarget) {
        let breakers = Breakers::new(&Metrics::new());
        let sick = target("sick.example");
        for _ in 0..FAILURES {
            breakers.admit(&sick, at(0)).unwrap();
            breakers.report(&sick, Signal::Ill, at(0));
        }
        (breakers, sick)
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_starts_anew() {
        let breakers = Breakers::new(&Metrics::new());
        let target = target("a.example");
        for signal in [
            Signal::Ill,
            Signal::Ill,
            Signal::Ill,
            Signal::Ill,
            Signal::Well,
            Signal::Ill,
            Signal::Ill,
            Signal::Ill,
            Signal::Ill,
        ] {
            breakers.report(&target, signal, at(0));
            assert_eq!(breakers.admit(&target, at(0)), Ok(()));
        }
        breakers.report(&target, Signal::Silent, at(0));
        breakers.report(&target, Signal::Ill, at(0));
        assert_eq!(breakers.admit(&target, at(0)), Err(OpenCircuit { until: at(30), spread: FIRST_WAIT }));
    }

    #[test]
    fn circuit_covers_one_host_only() {
        let (breakers, sick) = opened();
        assert!(breakers.admit(&sick, at(29)).is_err());
        assert_eq!(breakers.admit(&target("well.example"), at(29)), Ok(()));
    }

    #[test]
    fn one_probe_goes_at_a_time_and_each_that_fails_doubles_the_wait_up_to_ten_minutes() {
        let (breakers, sick) = opened();
        let (mut now, mut waits) = (at(30), vec![]);
        for _ in 0..6 {
            assert_eq!(breakers.admit(&sick, now), Ok(()), "the probe");
            let next = OpenCircuit { until: now + to_delta(PROBE_WAIT), spread: PROBE_WAIT };
            assert_eq!(breakers.admit(&sick, now), Err(next), "and no other");
            breakers.report(&sick, Signal::Ill, now);
            let Err(OpenCircuit { until, .. }) = breakers.admit(&sick, now) else { panic!("open") };
            waits.push((until - now).num_seconds());
            now = until;
        }
        assert_eq!(waits, [60, 120, 240, 480, 600, 600]);
        assert_eq!(breakers.admit(&sick, now), Ok(()));
        breakers.report(&sick, Signal::Well, now);
        assert_eq!((breakers.admit(&sick, now), breakers.admit(&sick, now)), (Ok(()), Ok(())));
    }

    #[test]
    fn probe_that_says_nothing_is_followed_by_another() {
        let (breakers, sick) = opened();
        breakers.admit(&sick, at(30)).unwrap();
        breakers.report(&sick, Signal::Silent, at(31));
        assert_eq!(breakers.admit(&sick, at(31)), Ok(()));
        assert!(breakers.admit(&sick, at(32)).is_err());
        assert_eq!(breakers.admit(&sick, at(31) + to_delta(LEASE)), Ok(()), "its process may have been cut off");
    }

    #[test]
    fn open_breakers_are_counted_for_each_channel() {
        let metrics = Metrics::new();
        let breakers = Breakers::new(&metrics);
        for host in ["a.example", "b.example"] {
            (0..FAILURES).for_each(|_| breakers.report(&target(host), Signal::Ill, at(0)));
        }
        let open = |count| {
            metrics.text().contains(&format!("reveille_channel_breakers_open{{channel=\"webhook\"}} {count}\n"))
        };
        assert!(open(2), "{}", metrics.text());
        breakers.report(&target("a.example"), Signal::Well, at(40));
        assert!(open(1), "{}", metrics.text());
    }

    #[test]
    fn no_more_hosts_are_remembered_than_there_is_room_for() {
        let metrics = Metrics::new();
        let breakers = Breakers::new(&metrics);
        let sick = |n: usize| target(&format!("{n}.example"));
        let fail = |n: usize, now| (0..FAILURES).for_each(|_| breakers.report(&sick(n), Signal::Ill, now));
        (0..HOSTS).for_each(|n| fail(n, at(0)));
        fail(HOSTS, at(1));
        assert_eq!(breakers.admit(&sick(HOSTS), at(1)), Ok(()), "without a breaker");
        assert!(breakers.admit(&sick(0), at(1)).is_err());
        let later = at(30) + to_delta(FORGOTTEN);
        fail(HOSTS, later);
        assert!(breakers.admit(&sick(HOSTS), later).is_err());
        assert_eq!(breakers.0.circuits.lock().unwrap().len(), 1, "nobody has asked for the others");
        assert!(
            metrics.text().contains("reveille_channel_breakers_open{channel=\"webhook\"} 1\n"),
            "{}",
            metrics.text()
        );
    }

    #[test]
    fn users_hosts_stand_apart() {
        let webhook = WebhookAddress { url: "https://hooks.example.org:8443/a?b".into(), sealed_secret: "x".into() };
        let ntfy = |server: &str| PushAddress::Ntfy { topic: "t".into(), server: Some(server.into()) };
        let push = vec![ntfy("https://n.example"), ntfy("https://a.example"), ntfy("https://n.example/x")];
        let addresses = Addresses { webhook: Some(webhook), push, ..Addresses::default() };
        let ann = Recipient { addresses, ..Recipient::default() };
        let host = |channel| CircuitTarget::for_recipient(channel, Some(&ann)).host;
        assert_eq!(host("webhook").as_deref(), Some("hooks.example.org:8443"));
        assert_eq!(host("push").as_deref(), Some("a.example+n.example"));
        // one of them on the operator's server: what fails there is no fault of theirs alone
        let ours = PushAddress::Ntfy { topic: "t".into(), server: None };
        let of = |push: Vec<PushAddress>| {
            let addresses = Addresses { push, ..Addresses::default() };
            CircuitTarget::for_recipient("push", Some(&Recipient { addresses, ..Recipient::default() })).host
        };
        assert_eq!(of(vec![ntfy("https://n.example"), ours.clone()]).as_deref(), Some("ntfy+n.example"));
        assert_eq!(of(vec![ours]), None);
        assert_eq!((host("email"), CircuitTarget::for_recipient("webhook", None).host), (None, None));
    }
}
