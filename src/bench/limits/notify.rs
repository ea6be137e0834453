//! Bare notify: a row is inserted and told of in one commit; another process that listens marks it started in a second.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgListener;
use uuid::Uuid;

use crate::base::clock::{Clock, pause};
use crate::bench::env::random_id;
use crate::bench::{BenchEnv, BenchSite, Part, PartMessage, PartProcess, Rate, Samples, Watch};

/// The channel, within the database: its name holds that of the schema.
fn channel(place: &BenchEnv) -> String {
    place.dir.file_name().map(|name| name.to_string_lossy().replace('-', "_")).unwrap_or_default()
}

/// Milliseconds from before the insert until the second commit, so often; `gap` passes after each.
pub async fn measure(
    at: &BenchSite,
    place: &BenchEnv,
    pool: &PgPool,
    samples: usize,
    gap: Duration,
) -> anyhow::Result<(Samples, Rate)> {
    sqlx::query("create table bare_asked (id uuid primary key, state text not null)").execute(pool).await?;
    let url = place.config.database.url.expose().to_owned();
    let channel = channel(place);
    let mut other = PartProcess::start(at, &Part::Listen { url, channel: channel.clone() }).await?;
    let clock = Clock::system();
    let mut connection = pool.acquire().await?;
    let (mut took, watch) = (Vec::with_capacity(samples), Watch::start());
    for _ in 0..samples {
        let id = random_id();
        let began = clock.elapsed();
        sqlx::query(
            "with made as (insert into bare_asked values ($1, 'ready') returning id)
             select pg_notify($2, id::text) from made",
        )
        .bind(id)
        .bind(&channel)
        .execute(&mut *connection)
        .await?;
        loop {
            if let PartMessage::Started { run_id, at } = other.receive().await?
                && run_id == id
            {
                took.push(at.saturating_sub(began).as_secs_f64() * 1000.0);
                break;
            }
        }
        pause(gap).await;
    }
    let rate = watch.rate(samples);
    other.stop().await?;
    Ok((Samples::new(took), rate))
}

/// The other process: marks what it is told of, and says when it had done so. Until `stop`.
pub async fn listen(url: &str, channel: &str, say: impl Fn(&PartMessage)) -> anyhow::Result<()> {
    let pool = PgPool::connect(url).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(channel).await?;
    let mut connection = pool.acquire().await?;
    let clock = Clock::system();
    say(&PartMessage::Ready);
    loop {
        let run_id: Uuid = listener.recv().await?.payload().parse()?;
        sqlx::query("update bare_asked set state = 'started' where id = $1 and state = 'ready'")
            .bind(run_id)
            .execute(&mut *connection)
            .await?;
        say(&PartMessage::Started { run_id, at: clock.elapsed() });
    }
}
