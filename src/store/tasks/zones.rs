//! Releases of the zone database: which one plans, its rules, and planning anew what an earlier one has planned.
//!
//! The newest release that any instance has is the one that plans. Once it is stored, nothing is fired by the clock
//! until every task that its rules move has been planned anew ([`Store::zones_are_planned`]), and by no instance that
//! goes by another release. A crash in between loses nothing: a task that was moved bears the release, and is not moved
//! again.
//!
//! A release that can't be read is set aside ([`Store::set_aside_zones`]), so that it stops no fire: its row keeps its
//! name and says since when (`set_aside_at`), and is left out until an instance that has the release stores it again.

use std::fmt::Display;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::NewDelivery;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::trigger::NextFire;
use crate::domain::trigger::zone::ZoneRelease;
use crate::store::runs::requests::LOCK_DUE;
use crate::store::sql::sql;
use crate::store::tasks::SELECT_TASK;
use crate::store::tasks::row::TaskRow;
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// The newest release that any instance has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestZones {
    /// The newest release that any instance has.
    pub release: ZoneRelease,
    /// Whether all that earlier releases had planned is planned anew.
    pub is_planned: bool,
}

/// Tasks whose zone an older release has planned, of a part of all tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZonedTasks {
    /// With the names of their zones.
    pub found: Vec<(Uuid, String)>,
    /// The last task that was looked at; `None`: there is none after these.
    pub last: Option<Uuid>,
}

/// A task, and the instant that it waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedTask {
    /// The task.
    pub task: Task,
    /// The instant that it waits for, by the schedule.
    pub nominal: DateTime<Utc>,
}

pub(in crate::store) const NEWEST: &str = "
    select cast(release as text), replanned_at is not null from zone_releases
     where set_aside_at is null order by release desc limit 1";

/// The release that takes the place of one that had planned and is set aside, as if it had planned that: there are no
/// rules by which that could be planned anew. Where another one has planned as well, all is planned anew as ever. The
/// instance that asks has the release, so it is set aside no more.
const IN_ITS_PLACE: &str = "
    insert into zone_releases (release, rules, created_at, replanned_at)
    select $1, $2, $3, $3
      from zone_releases lost
     where cast(lost.release as text) = $4 and lost.replanned_at is not null
       and not exists (select 1 from zone_releases z where z.replanned_at is not null and z.set_aside_at is null)
    on conflict (release) do update
       set rules = excluded.rules, replanned_at = excluded.replanned_at, set_aside_at = null";
/// One that is stored stays as it is, unless it is set aside.
const ADD: &str = "
    insert into zone_releases (release, rules, created_at) values ($1, $2, $3)
    on conflict (release) do update
       set rules = excluded.rules, created_at = excluded.created_at, replanned_at = null, set_aside_at = null
     where zone_releases.set_aside_at is not null";
/// Releases that were set aside before `$1` need not be told of any more.
const FORGET_ASIDE: &str = "delete from zone_releases where set_aside_at < $1";
/// How long a release that is set aside is told of at least.
const ASIDE_FOR: TimeDelta = TimeDelta::days(1);

/// Tasks in the order of their ids, and whether a release has planned them.
const PLANNED_BY: &str = "
    select id, coalesce(zone_database = $3, false) from tasks where id > $1 order by id limit $2";
const REWRITE: &str = "
    update tasks set zone_database = $2
     where id = $1 and zone_database = $3
       and exists (select 1 from zone_releases z where cast(z.release as text) = $3 and z.set_aside_at is not null)";

/// Whether fires may be planned by `release`: no newer one is stored, and nothing is left that an older one has
/// planned.
pub(in crate::store) async fn may_plan(tx: &mut Tx<'_>, release: &ZoneRelease) -> Result<bool, StoreError> {
    let newest: Option<(String, bool)> = tx.query(NEWEST).optional().await?;
    Ok(newest.is_none_or(|(newest, is_planned)| newest == release.as_str() && is_planned))
}

const OF_ZONES: &str = "
    select id, case when trigger_type = 'schedule' and status = 'active' and zone_database < $3{and}
                    then cast(spec -> 'trigger' ->> 'timezone' as text) end as timezone
      from tasks
     where id > $1
     order by id
     limit $2";

/// The zones of tasks; one that can't be read has none, and is left to the scheduler.
const ZONED: Split =
    Split { postgres: sql!(OF_ZONES; "{and}" = ""), sqlite: sql!(OF_ZONES; "{and}" = " and json_valid(spec)") };

impl Store {
    /// The newest release that is stored; `None` before the first.
    pub async fn newest_zones(&self) -> Result<Option<NewestZones>, StoreError> {
        let newest = self.newest_row().await?;
        let read =
            |(release, is_planned): (String, bool)| Ok(NewestZones { release: read_release(&release)?, is_planned });
        newest.map(read).transpose()
    }

    /// The name under which the newest release is stored, where it is the name of none.
    pub async fn misnamed_zones(&self) -> Result<Option<String>, StoreError> {
        let newest = self.newest_row().await?;
        Ok(newest.map(|(name, _)| name).filter(|name| ZoneRelease::parse(name).is_none()))
    }

    async fn newest_row(&self) -> Result<Option<(String, bool)>, StoreError> {
        Ok(self.db.read().await?.query(NEWEST).optional().await?)
    }

    /// Sets a release aside that is stored under this name and can't be read, and says so once: no instance goes by it
    /// any more. The release of `own`, with its rules, takes its place; what the lost one has planned stays as it is,
    /// and bears its name until [`Store::rewrite_tasks_of_zones`]. Answers whether it was there still.
    pub async fn set_aside_zones(
        &self,
        lost: &str,
        why: &(dyn Display + Sync),
        own: (&ZoneRelease, &[u8]),
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let (release, rules) = own;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let found = tx
            .query(
                "update zone_releases set set_aside_at = $2
                  where cast(release as text) = $1 and set_aside_at is null",
            )
            .bind(lost)
            .bind(now)
            .execute()
            .await?;
        if found == 0 {
            return Ok(false);
        }
        tx.query(IN_ITS_PLACE).bind(release.as_str()).bind(rules).bind(now).bind(lost).execute().await?;
        write.commit().await?;
        self.unreadable.report("zone_releases", lost, why);
        self.notify_all_instances(Topic::Due);
        Ok(true)
    }

    /// Lets tasks bear the release `own` that were planned by `lost`, which is set aside: of the `limit` tasks after
    /// one. A release that was stored anew meanwhile keeps its tasks. Answers the last task that was looked at; `None`:
    /// there is none after these.
    pub async fn rewrite_tasks_of_zones(
        &self,
        lost: &str,
        own: &ZoneRelease,
        after: Uuid,
        limit: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let looked_at: Vec<(Uuid, bool)> =
            self.db.read_quick().await?.query(PLANNED_BY).bind(after).bind(limit).bind(lost).all().await?;
        let last = looked_at.last().map(|(id, _)| *id).filter(|_| looked_at.len() as i64 >= limit);
        let planned: Vec<Uuid> = looked_at.into_iter().filter(|(_, by_lost)| *by_lost).map(|(id, _)| id).collect();
        if planned.is_empty() {
            return Ok(last);
        }
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        for id in planned {
            tx.query(REWRITE).bind(id).bind(own.as_str()).bind(lost).execute().await?;
        }
        write.commit().await?;
        Ok(last)
    }

    /// The names of the releases that are set aside, as they were stored.
    pub async fn zones_set_aside(&self) -> Result<Vec<String>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query("select cast(release as text) from zone_releases where set_aside_at is not null order by release")
            .scalars()
            .await?)
    }

    /// Stores a release with its rules: from now on no other plans, and nothing is fired by the clock until
    /// [`Store::zones_are_planned`]. One that is stored already stays as it is; one that was set aside is stored anew.
    pub async fn add_zones(&self, release: &ZoneRelease, rules: &[u8], now: DateTime<Utc>) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        write.query(ADD).bind(release.as_str()).bind(rules).bind(now).execute().await?;
        write.commit().await?;
        Ok(())
    }

    /// The rules of a release that is stored, and not set aside.
    pub async fn zones_of(&self, release: &ZoneRelease) -> Result<Option<Vec<u8>>, StoreError> {
        let mut read = self.db.read().await?;
        Ok(read
            .query("select rules from zone_releases where cast(release as text) = $1 and set_aside_at is null")
            .bind(release.as_str())
            .optional_scalar()
            .await?)
    }

    /// The release that has planned everything last; `None` before the first, and where its name can't be read.
    pub async fn planned_zones(&self) -> Result<Option<ZoneRelease>, StoreError> {
        let release: Option<String> = self
            .db
            .read()
            .await?
            .query(
                "select cast(release as text) from zone_releases
                  where replanned_at is not null and set_aside_at is null order by release desc limit 1",
            )
            .optional_scalar()
            .await?;
        Ok(release.and_then(|release| ZoneRelease::parse(&release)))
    }

    /// Active tasks with a zone that a release before `release` has planned, of the `limit` tasks after one.
    pub async fn tasks_planned_before(
        &self,
        release: &ZoneRelease,
        after: Uuid,
        limit: i64,
    ) -> Result<ZonedTasks, StoreError> {
        let looked_at: Vec<(Uuid, Option<String>)> =
            self.db.read().await?.query(ZONED).bind(after).bind(limit).bind(release.as_str()).all().await?;
        let last = looked_at.last().map(|(id, _)| *id).filter(|_| looked_at.len() as i64 >= limit);
        let found = looked_at.into_iter().filter_map(|(id, zone)| Some((id, zone?))).collect();
        Ok(ZonedTasks { found, last })
    }

    /// A task that waits for an instant; `None` where it does not, or is gone.
    pub async fn planned_task(&self, id: Uuid) -> Result<Option<PlannedTask>, StoreError> {
        let row: Option<TaskRow> =
            self.db.read().await?.query(sql!(SELECT_TASK, "where t.id = $1")).bind(id).optional().await?;
        let Some((row, nominal)) = row.and_then(|row| row.nominal_at.map(|nominal| (row, nominal))) else {
            return Ok(None);
        };
        let task = row.task()?;
        Ok((task.status == TaskStatus::Active).then_some(PlannedTask { task, nominal }))
    }

    /// Lets a task wait for `next` from now on, and tells its owner, in one transaction; where it still waits for what
    /// it was seen to wait for, and nobody has planned it by this release meanwhile. `None` for `next`: its schedule
    /// has ended. Answers whether it was done.
    ///
    /// A fire that is recorded ahead stays: it is due within a moment, and was considered under the rules of then.
    pub async fn move_task(
        &self,
        seen: &PlannedTask,
        next: Option<NextFire>,
        release: &ZoneRelease,
        notice: Option<&NewDelivery>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let id = seen.task.id;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(LOCK_DUE).bind(id).execute().await?;
        // without an instant the scheduler completes the task when it looks at it
        let due = tx
            .query(
                "update due set next_at = $4, nominal_at = $5
                  where task_id = $1 and nominal_at = $2 and epoch = $3
                    and (select zone_database from tasks where id = $1) < $6",
            )
            .bind(id)
            .bind(seen.nominal)
            .bind(seen.task.epoch)
            .bind(next.map_or(now, |next| next.run_at))
            .bind(next.map(|next| next.nominal))
            .bind(release.as_str())
            .execute()
            .await?;
        if due == 0 {
            return Ok(false);
        }
        tx.query("update tasks set zone_database = $2 where id = $1").bind(id).bind(release.as_str()).execute().await?;
        if let Some(notice) = notice {
            tx.post(&[notice], now).await?;
        }
        write.commit().await?;
        self.notify(Topic::Due);
        self.notify(Topic::Outbox);
        Ok(true)
    }

    /// All that earlier releases had planned is planned anew; their rules are not needed any more.
    pub async fn zones_are_planned(&self, release: &ZoneRelease, now: DateTime<Utc>) -> Result<(), StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        tx.query(
            "update zone_releases set replanned_at = $2
              where release = $1 and replanned_at is null and set_aside_at is null",
        )
        .bind(release.as_str())
        .bind(now)
        .execute()
        .await?;
        tx.query("delete from zone_releases where release < $1 and set_aside_at is null")
            .bind(release.as_str())
            .execute()
            .await?;
        tx.query(FORGET_ASIDE).bind(now - ASIDE_FOR).execute().await?;
        write.commit().await?;
        self.notify_all_instances(Topic::Due);
        Ok(())
    }
}

fn read_release(text: &str) -> Result<ZoneRelease, StoreError> {
    ZoneRelease::parse(text).ok_or_else(|| StoreError::Corrupt(format!("`{text}` is no release of a zone database")))
}
