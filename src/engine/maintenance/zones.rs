//! The zone keeper: notices when the rules of time zones change, on this machine or with another instance, and plans
//! anew what that concerns.
//!
//! The newest release that any instance has is the one that plans; an instance that lacks it takes its rules from the
//! database. Instants that were planned by earlier rules are gone through once, in batches, before anything else is
//! fired by the clock. A crash in between loses nothing: whoever looks next begins the pass again, and finds done what
//! was done.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use futures::future::BoxFuture;
use prometheus_client::metrics::counter::Counter;
use tokio::task::spawn_blocking;
use uuid::Uuid;

use crate::base::compute::ENGINE;
use crate::base::metrics::Metrics;
use crate::domain::notification::{NewDelivery, NoticeKind, Recipient, SubjectRef, notices};
use crate::domain::trigger::replan::PendingFire;
use crate::domain::trigger::zone::{Settings, ZoneRelease, ZoneTable, Zones};
use crate::domain::trigger::{self, Trigger};
use crate::engine::Wakeup;
use crate::engine::service::{NextTick, ServiceLoop, TickError};
use crate::store::{NewestZones, PlannedTask, Store, StoreError};

/// Tasks that one tick looks at.
const PAGE: i64 = 200;
/// Rules are compared so far ahead: no search for an instant looks further.
const AHEAD: TimeDelta = TimeDelta::days(40 * 366);
/// And so far back: what is due has waited no longer, but for outages that nobody catches up.
const BACK: TimeDelta = TimeDelta::days(366);
/// How often a task is looked at again that was changed meanwhile.
const TRIES: usize = 3;
/// Nothing that was due has been fired for so long: no instance is there that plans by the newest release.
const UNFIRED: TimeDelta = TimeDelta::hours(1);

/// Adopts newer zone rules, and plans tasks by them.
pub struct ZoneKeeper {
    store: Store,
    settings: Settings,
    /// The zone rules by which this instance plans.
    zones: Zones,
    metrics: Metrics,
    moved: Counter,
    wakeup: Wakeup,
    /// The newer release that the folder had at the last look: one that is being replaced is not read.
    seen: Mutex<Option<ZoneRelease>>,
    /// Whether the last tick has left something to do: the next one follows at once, and does not look at the folder.
    busy: AtomicBool,
    pass: Mutex<Option<ReplanPass>>,
    /// The releases that were set aside here, by their names as they were stored.
    set_aside: Mutex<HashMap<String, UnreadableRelease>>,
    /// Releases that are set aside, and the last task that was looked at for what they had planned; `None`: all were.
    rewritten: Mutex<HashMap<String, Option<Uuid>>>,
}

/// A release that can't be read, as it was when it was set aside.
struct UnreadableRelease {
    /// The hash of its rules; `None` where there were none to be had.
    hash: Option<Vec<u8>>,
    at: DateTime<Utc>,
}

/// A pass through all tasks, and how far it is.
#[derive(Clone)]
struct ReplanPass {
    old: Arc<ZoneTable>,
    new: Arc<ZoneTable>,
    /// The zones whose rules differ.
    zones: Arc<HashSet<&'static str>>,
    after: Uuid,
    moved: u64,
}

impl ZoneKeeper {
    /// The service, with its metrics.
    pub fn new(store: Store, settings: Settings, zones: Zones, metrics: Metrics) -> ZoneKeeper {
        let help = "Tasks whose next instant moved with the rules of their zone";
        let moved = metrics.registered("zone_moves", help, Counter::default());
        ZoneKeeper {
            store,
            settings,
            zones,
            metrics,
            moved,
            wakeup: Wakeup::default(),
            seen: Mutex::default(),
            busy: AtomicBool::default(),
            pass: Mutex::default(),
            set_aside: Mutex::default(),
            rewritten: Mutex::default(),
        }
    }

    /// Wakes where somebody finds that another release plans.
    pub(crate) fn wakeup(&self) -> Wakeup {
        Arc::clone(&self.wakeup)
    }

    /// Plans by the machine's rules once two looks have found the same newer release.
    async fn check_folder(&self) {
        let present = self.zones.get().release().clone();
        let settings = self.settings.clone();
        let found = spawn_blocking(move || settings.release()).await.ok().flatten().filter(|found| *found > present);
        let before = std::mem::replace(&mut *self.seen.lock().expect("seen lock"), found.clone());
        if found.is_none() || before != found {
            return;
        }
        let (settings, zones) = (self.settings.clone(), self.zones.clone());
        if let Ok(warnings) = spawn_blocking(move || settings.renew(&zones)).await {
            warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        self.log_once("the rules of time zones were replaced on this machine");
    }

    fn log_once(&self, what: &str) {
        let zones = self.zones.get();
        self.metrics.zones(zones.release().as_str(), zones.source().as_str());
        tracing::info!(release = zones.release().as_str(), source = %zones.source(), "{what}");
    }

    /// One step towards planning by the newest rules; answers whether there is more to do.
    async fn step(&self) -> Result<bool, TickError> {
        let current = self.zones.get();
        if let Some(name) = self.store.misnamed_zones().await? {
            return self.set_aside(&name, None, "it is the name of no release").await;
        }
        if self.rewrite_tasks(current.release()).await? {
            return Ok(true);
        }
        let newest = self.store.newest_zones().await?;
        match newest {
            Some(newest) if newest.release > *current.release() => self.adopt_newest(&newest).await,
            Some(newest) if newest.release == *current.release() && newest.is_planned => {
                *self.pass.lock().expect("pass lock") = None;
                Ok(false)
            }
            Some(newest) if newest.release == *current.release() => self.replan_batch(current).await,
            _ => {
                let (zones, release) = (Arc::clone(&current), current.release().clone());
                let Ok(rules) = spawn_blocking(move || zones.to_bytes()).await else { return Ok(false) };
                self.store.add_zones(&release, &rules, self.store.clock().now()).await?;
                Ok(true)
            }
        }
    }

    /// Takes the rules of a newer release from the database; where they can't be read, it is set aside. Answers whether
    /// there is more to do.
    async fn adopt_newest(&self, newest: &NewestZones) -> Result<bool, TickError> {
        let own = self.zones.get().release().clone();
        let release = newest.release.clone();
        let rules = match self.store.zones_of(&release).await {
            Ok(Some(rules)) => Some(Arc::new(rules)),
            // it has gone, and another one may be the newest
            Ok(None) => return Ok(true),
            Err(StoreError::Corrupt(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let read = match rules.clone() {
            Some(rules) => spawn_blocking(move || ZoneTable::from_bytes(release, &rules)).await.ok().flatten(),
            None => None,
        };
        let Some(read) = read else {
            let rules = rules.as_deref().map(Vec::as_slice);
            return self.set_aside(newest.release.as_str(), rules, "its rules can't be read").await;
        };
        if !read.unread_zones().is_empty() {
            tracing::warn!(
                release = newest.release.as_str(),
                zones = read.unread_zones().join(", "),
                "some zones of newer rules can't be read here, and are gone by as this build has them; update Reveille"
            );
        }
        self.zones.adopt(read);
        self.metrics.zones(newest.release.as_str(), self.zones.get().source().as_str());
        tracing::warn!(
            release = newest.release.as_str(),
            own = own.as_str(),
            "another instance has newer rules of time zones, which are gone by here, too; update tzdata, or Reveille"
        );
        Ok(true)
    }

    /// Sets a stored release aside that can't be read, so that it stops no fire: the newest that can be read plans, of
    /// those that are stored and this instance's own. One that is there again as it was is another instance's, which
    /// can read it: the fires are left to that one, as long as they are fired. Answers whether there is more to do.
    async fn set_aside(&self, lost: &str, rules: Option<&[u8]>, why: &'static str) -> Result<bool, TickError> {
        let hash = rules.map(|rules| digest(&SHA256, rules).as_ref().to_vec());
        if self.is_left_to_others(lost, hash.as_deref()).await? {
            return Ok(false);
        }
        let now = self.store.clock().now();
        let own = self.zones.get();
        let zones = Arc::clone(&own);
        let Ok(rules) = spawn_blocking(move || zones.to_bytes()).await else { return Ok(false) };
        if self.store.set_aside_zones(lost, &why, (own.release(), rules.as_slice()), now).await? {
            tracing::warn!(
                release = lost,
                own = own.release().as_str(),
                why,
                "the newest rules of time zones that are stored can't be read; tasks are planned by the newest that can be"
            );
        }
        self.rewritten.lock().expect("rewritten lock").remove(lost);
        self.set_aside.lock().expect("set aside lock").insert(lost.to_owned(), UnreadableRelease { hash, at: now });
        Ok(true)
    }

    /// Whether a release was set aside here as it is, and another instance has stored it again and plans by it.
    async fn is_left_to_others(&self, lost: &str, hash: Option<&[u8]>) -> Result<bool, TickError> {
        let before = self.store.clock().now() - UNFIRED;
        let set_aside_at = {
            let releases = self.set_aside.lock().expect("set aside lock");
            releases.get(lost).filter(|release| release.hash.as_deref() == hash).map(|release| release.at)
        };
        let Some(set_aside_at) = set_aside_at else { return Ok(false) };
        if set_aside_at > before || self.store.halts().await?.all() {
            return Ok(true);
        }
        Ok(self.store.next_due().await?.is_none_or(|due| due > before))
    }

    /// Lets some tasks bear this release that one has planned which is set aside, so that later ones plan them anew;
    /// answers whether there may be more.
    async fn rewrite_tasks(&self, own: &ZoneRelease) -> Result<bool, TickError> {
        let set_aside = match self.store.zones_set_aside().await {
            Err(StoreError::Corrupt(_)) => Vec::new(),
            releases => releases?,
        };
        let open = {
            let mut rewritten = self.rewritten.lock().expect("rewritten lock");
            rewritten.retain(|lost, _| set_aside.contains(lost));
            let mut places =
                set_aside.into_iter().map(|lost| (rewritten.get(&lost).copied().unwrap_or(Some(Uuid::nil())), lost));
            places.find_map(|(after, lost)| Some((after?, lost)))
        };
        let Some((after, lost)) = open else { return Ok(false) };
        let last = self.store.rewrite_tasks_of_zones(&lost, own, after, PAGE).await?;
        self.rewritten.lock().expect("rewritten lock").insert(lost, last);
        Ok(true)
    }

    /// Plans anew what is concerned of some tasks; answers whether there are more.
    async fn replan_batch(&self, current: Arc<ZoneTable>) -> Result<bool, TickError> {
        let going = self.pass.lock().expect("pass lock").clone();
        let mut pass = match going.filter(|pass| pass.new.release() == current.release()) {
            Some(pass) => pass,
            None => self.begin(current).await?,
        };
        let now = self.store.clock().now();
        let release = pass.new.release().clone();
        let last = match pass.zones.is_empty() {
            true => None,
            false => {
                let page = self.store.tasks_planned_before(&release, pass.after, PAGE).await?;
                let concerned = page.found.iter().filter(|(_, zone)| pass.zones.contains(zone.as_str()));
                for (id, _) in concerned {
                    pass.moved += u64::from(self.replan(&pass, *id, now).await?);
                }
                page.last
            }
        };
        if let Some(last) = last {
            pass.after = last;
            *self.pass.lock().expect("pass lock") = Some(pass);
            return Ok(true);
        }
        self.store.zones_are_planned(&release, now).await?;
        tracing::info!(
            release = release.as_str(),
            before = pass.old.release().as_str(),
            zones = pass.zones.len(),
            moved = pass.moved,
            "tasks are planned by the present rules of time zones"
        );
        Ok(true)
    }

    async fn begin(&self, new: Arc<ZoneTable>) -> Result<ReplanPass, TickError> {
        let planned = self.store.planned_zones().await?;
        let stored = match &planned {
            Some(release) => match self.store.zones_of(release).await {
                Err(StoreError::Corrupt(_)) => None,
                rules => rules?,
            },
            None => None,
        };
        let (from, to) = (self.store.clock().now() - BACK, self.store.clock().now() + AHEAD);
        let compared = spawn_blocking(move || {
            let old = planned.zip(stored).and_then(|(release, rules)| ZoneTable::from_bytes(release, &rules));
            let old = Arc::new(old.unwrap_or_else(ZoneTable::legacy));
            let zones: HashSet<&'static str> =
                new.differing(&old, from, to).into_iter().map(|zone| zone.name()).collect();
            ReplanPass { old, new, zones: Arc::new(zones), after: Uuid::nil(), moved: 0 }
        });
        compared.await.map_err(|_| StoreError::Corrupt("the zone rules can't be compared".into()).into())
    }

    /// Plans one task anew; answers whether its next instant moved. A task that can't be planned is left to the
    /// scheduler, which says so: it holds up no other.
    async fn replan(&self, pass: &ReplanPass, id: Uuid, now: DateTime<Utc>) -> Result<bool, TickError> {
        for _ in 0..TRIES {
            let seen = match self.store.planned_task(id).await {
                Ok(Some(seen)) => seen,
                Ok(None) => return Ok(false),
                Err(error @ StoreError::Unavailable(_)) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(task_id = %id, %error, "a task can't be read, so it is not planned anew");
                    return Ok(false);
                }
            };
            let Some(next) = self.next(pass, &seen).await else { return Ok(false) };
            if next.map(|next| next.nominal) == Some(seen.nominal) {
                return Ok(false);
            }
            let notice = self.notice(pass, &seen, next).await?;
            if self.store.move_task(&seen, next, pass.new.release(), notice.as_ref(), now).await? {
                self.moved.inc();
                return Ok(true);
            }
        }
        tracing::warn!(task_id = %id, "a task changes all the time, so it is not planned anew");
        Ok(false)
    }

    /// The task's next instant by the new rules; the outer `None`: it can't be told.
    async fn next(&self, pass: &ReplanPass, seen: &PlannedTask) -> Option<Option<trigger::NextFire>> {
        let Trigger::Schedule(schedule) = seen.task.spec.trigger.clone() else { return None };
        let ReplanPass { old, new, .. } = pass.clone();
        let task = &seen.task;
        let (task_id, anchor, active_since) = (task.id, task.anchor_at, task.active_since);
        let pending = PendingFire { task_id, anchor, active_since, nominal: seen.nominal };
        // all fires by the clock wait for it
        let planned = self.store.compute(ENGINE, move || schedule.replan(&pending, &old, &new)).await;
        match planned {
            Ok(Ok(next)) => Some(next),
            Ok(Err(fault)) => {
                tracing::warn!(%task_id, fault = fault.message, "a task can't be planned anew");
                None
            }
            Err(_) => {
                tracing::error!(%task_id, "planning a task anew panicked");
                None
            }
        }
    }

    /// The message to the owner; `None` where nobody can be told.
    async fn notice(
        &self,
        pass: &ReplanPass,
        seen: &PlannedTask,
        next: Option<trigger::NextFire>,
    ) -> Result<Option<NewDelivery>, StoreError> {
        let Trigger::Schedule(schedule) = &seen.task.spec.trigger else { return Ok(None) };
        let recipient = self.store.recipient_to_tell(&seen.task.tenant_id).await?;
        let zone = pass.new.zone(schedule.timezone.as_deref().and_then(|name| name.parse().ok()).unwrap_or(Tz::UTC));
        let words = notices::zone_rules(
            Recipient::language_of(recipient.as_ref()),
            &seen.task.name,
            (&zone, pass.new.release()),
            seen.nominal,
            next.map(|next| next.nominal),
        );
        // the instant that moved tells one change of rules from the next
        let about = SubjectRef::notice(NoticeKind::ZoneRules, seen.task.id, seen.nominal.timestamp_millis());
        Ok(NewDelivery::notice(&seen.task, recipient.as_ref(), about, words))
    }
}

impl ServiceLoop for ZoneKeeper {
    const NAME: &'static str = "zones";
    const POLL_INTERVAL: Duration = Duration::from_secs(60);

    async fn tick(&self) -> Result<NextTick, TickError> {
        if !self.busy.load(Ordering::Relaxed) {
            self.check_folder().await;
        }
        let more = self.step().await?;
        self.busy.store(more, Ordering::Relaxed);
        Ok(if more { NextTick::Now } else { NextTick::OnWake })
    }

    fn wakeup(&self) -> BoxFuture<'static, ()> {
        let wakeup = Arc::clone(&self.wakeup);
        Box::pin(async move { wakeup.notified().await })
    }
}
