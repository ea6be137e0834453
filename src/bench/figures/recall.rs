//! `recall_1m`: how long a run waits for the facts that it is told before its first turn, where many tenants have very
//! many.

use std::time::Instant;

use anyhow::ensure;

use crate::base::id::Tenant;
use crate::bench::limits::{full_text, millis};
use crate::bench::{Bench, BenchEnv, BenchFigure, Instance, Samples};
use crate::domain::memory::recall::{RECALLED_CHARS, terms};
use crate::executor::host::StoreHost;
use crate::ports::tool::ToolHost;

const NAME: &str = "recall_1m";
/// The longest that it may take, in milliseconds, p99.
const MOST: f64 = 20.0;
/// Facts of each tenant but one, of which one in ten is of its profile.
const EACH: usize = 100;
/// Recalls that are timed, each of another tenant, and those of the tenant with as many facts as one may have.
const RECALLS: usize = 2_000;
const RECALLS_OF_LARGEST: usize = 100;
/// Bare queries that are timed.
const BARE: usize = 200;
const LARGEST: &str = "the-largest";

/// Times in milliseconds.
#[derive(Default)]
struct Recalls {
    of_many: Vec<f64>,
    of_largest: Vec<f64>,
    bare: Vec<f64>,
}

pub async fn measure(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes(NAME) {
        return Ok(());
    }
    let (facts, largest) = (bench.size.stored_facts, bench.size.facts_of_one);
    let tenants = facts / EACH;
    bench.progress(&format!("{NAME}: {facts} facts of {tenants} tenants"));
    let Recalls { of_many, of_largest, bare } =
        BenchEnv::with(bench.at, async |place| observe(bench, place).await).await?;
    let (samples, largest_samples, bare) = (Samples::new(of_many), Samples::new(of_largest), Samples::new(bare));
    let what = format!("the facts that a run is told, of {facts} of {tenants} tenants, p99");
    let figure = BenchFigure::new(NAME, what, "ms", samples.count(), samples.percentile(0.99));
    let figure = figure.with_limit("what it may take", MOST).at_most(1.0);
    let figure = figure.with_part("p50", "ms", samples.percentile(0.5));
    let figure = figure.with_part("a bare full-text query over as many, p50", "ms", bare.percentile(0.5));
    let figure = figure.with_part("a bare full-text query over as many, p99", "ms", bare.percentile(0.99));
    let of_one = largest_samples.percentile(0.99);
    let words = format!("of a tenant with {largest} facts beside them, p99");
    bench.figures.push(figure.with_part(words, "ms", of_one).spread(&samples));
    Ok(())
}

async fn observe(bench: &Bench<'_>, place: &BenchEnv) -> anyhow::Result<Recalls> {
    let instance = Instance::build_with(&place.default_config(), None).await?;
    let (facts, tenants) = (bench.size.stored_facts, bench.size.stored_facts / EACH);
    let fixtures = instance.fixtures(place);
    fixtures.facts(facts, tenants).await?;
    fixtures.facts_of(LARGEST, bench.size.facts_of_one).await?;
    if place.is_postgres() {
        // as autovacuum has done long before there are so many
        place.inside.execute("analyze facts").await?;
    }
    let host = StoreHost::new(instance.store.clone(), instance.validator.clone(), instance.bus.clone());
    let mut recalls = Recalls::default();
    for number in 0..RECALLS.min(tenants) {
        // from all over them
        let tenant = format!("facts-{}", number * 7 % tenants);
        recalls.of_many.push(recall(&host, &tenant, number).await?);
    }
    for number in 0..RECALLS_OF_LARGEST {
        recalls.of_largest.push(recall(&host, LARGEST, number).await?);
    }
    instance.close().await;
    let tenant = format!("'t' || (g.n % {tenants})");
    full_text::fill(&place.bare, facts, &tenant, &crate::bench::fixtures::fact_text()).await?;
    for number in 0..BARE.min(tenants) {
        let tenant = format!("t{}", number * 7 % tenants);
        let (took, found) = full_text::search(&place.bare, &tenant, &terms(&message(number))).await?;
        ensure!(found > 0, "the bare query finds nothing of {tenant}");
        recalls.bare.push(took);
    }
    Ok(recalls)
}

/// How long a run of this tenant waits, in milliseconds.
async fn recall(host: &StoreHost, tenant: &str, number: usize) -> anyhow::Result<f64> {
    let (tenant, message) = (Tenant::new(tenant).map_err(anyhow::Error::msg)?, message(number));
    let began = Instant::now();
    let told = host.facts_for(&tenant, &message, RECALLED_CHARS).await?;
    let took = millis(began);
    let is_own = told.iter().all(|fact| fact.tenant_id == tenant.as_str());
    ensure!(!told.is_empty() && is_own, "a run of {tenant} is told {} facts", told.len());
    Ok(took)
}

/// A message of a person, whose words are in some facts of every tenant.
fn message(number: usize) -> String {
    format!(
        "Please reserve something quiet for the evening, with drink{} if they have it, in room{}; ask for guest {number}",
        number % 499,
        number % 61
    )
}
