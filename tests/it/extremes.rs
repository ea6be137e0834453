//! Every number of the configuration at its extremes: either a fault that names the key, or settings that everything
//! can be computed from. A key that is added later is tried as well, because the keys are asked of serde.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use reveille::app::{AppAdditions, validate};
use reveille::base::clock::{Clock, machine_now, to_delta};
use reveille::config::{Config, Environment, keys};
use toml::{Table, Value};

/// One of each table that has no default, and an entry of each list of tables.
const BASE: &str = "
    [llm.models.main]
    provider = \"openai\"
    model = \"m\"
    [[tools]]
    name = \"send_note\"
    description = \"Send a note.\"
    category = \"read\"
    consequence = \"low\"
    [tools.http]
    method = \"POST\"
    url = \"https://notes.example.org/notes\"
    [[agents]]
    name = \"helper\"
    description = \"Helps.\"
    instruction = \"Help.\"
    [[agents.fields]]
    name = \"city\"
    type = \"string\"
    [[mcp_servers]]
    name = \"notes\"
    url = \"https://mcp.example.org/mcp\"
";

/// The keys, with the names of [`BASE`] where the operator gives one.
fn paths() -> Vec<Vec<String>> {
    let name = |part: &str| match part {
        keys::ANY => "main".to_owned(),
        part => part.to_owned(),
    };
    keys::all().iter().map(|key| key.split('.').map(name).collect()).collect()
}

fn extreme() -> impl Strategy<Value = Value> {
    let whole =
        [0, 1, 2, -1, 86_400, 65_535, 65_536, i64::from(u32::MAX), 1 << 32, 1 << 53, i64::MAX - 1, i64::MAX, i64::MIN];
    let broken = [0.0, -0.0, 0.5, -1.0, 1e-300, 1e18, f64::MAX, f64::MIN, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    prop_oneof![
        prop::sample::select(whole.to_vec()).prop_map(Value::Integer),
        prop::sample::select(broken.to_vec()).prop_map(Value::Float),
        any::<i64>().prop_map(Value::Integer),
        prop::sample::select(vec!["0s", "1ms", "999999999d", "584542046090y", "-1d"]).prop_map(Value::from),
    ]
}

fn put(table: &mut Table, path: &[String], value: &Value) {
    match path {
        [key] => drop(table.insert(key.clone(), value.clone())),
        [list, each, rest @ ..] if each == "[]" => {
            let entry = table.get_mut(list).and_then(Value::as_array_mut).and_then(|list| list.first_mut());
            if let Some(entry) = entry.and_then(Value::as_table_mut) {
                put(entry, rest, value);
            }
        }
        [key, rest @ ..] => {
            let below = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Some(below) = below.as_table_mut() {
                put(below, rest, value);
            }
        }
        [] => {}
    }
}

/// Computes every setting that the service computes before anything is asked of it, and at each tick.
fn compute(config: &Config) {
    let now = machine_now();
    let engine = &config.engine;
    assert!(now - engine.retention() < now && !engine.lease().is_zero());
    let _ = (now + to_delta(engine.lease()), now + to_delta(engine.shutdown_grace()), engine.limits());
    let bus = &config.bus;
    let _ = (now - to_delta(bus.retention()), now + to_delta(bus.stalled_after()));
    let _permits = tokio::sync::Semaphore::new(config.poll.max_concurrent);
    let _permits = tokio::sync::Semaphore::new(engine.max_concurrent_runs + engine.prefetch);
    let delay = config.react.retry().base_delay;
    let _ = now + to_delta(delay * 2_u32.pow(config.react.retry().max_retries));
    for model in config.llm.models.values() {
        let _ = now + to_delta(Duration::from_secs(model.timeout_seconds));
    }
}

/// Computes the numbers of tools, which their builders judge.
fn compute_of_tools(config: &Config) {
    let of_servers = || config.mcp_servers.iter().flat_map(|server| server.tools.values());
    let policies = config.all_tool_policies();
    for retry in policies.values().map(|policy| &policy.retry).chain(of_servers().map(|tool| &tool.retry)) {
        let next = |limit, number| retry.next_limit(limit) + retry.wait(number);
        let longest = (0..=retry.max_retries).fold(Duration::from_secs(300), next);
        let _ = machine_now() + to_delta(longest);
    }
    let declared = config.tools.iter().filter_map(|tool| tool.timeout_seconds);
    let servers = config.mcp_servers.iter().flat_map(|server| [Some(server.connect_seconds), server.timeout_seconds]);
    let limits = declared.chain(servers.flatten()).chain(of_servers().filter_map(|tool| tool.timeout_seconds));
    for seconds in limits {
        let _ = machine_now() + to_delta(Duration::from_secs(seconds));
    }
}

/// An entry that a list lacks in [`BASE`] would leave the keys of the list untried.
#[test]
fn every_key_is_put_where_the_configuration_reads_it() {
    let base: Table = BASE.parse().unwrap();
    let is_left_out = |path: &&Vec<String>| {
        let mut file = base.clone();
        put(&mut file, path, &Value::from("\u{1}"));
        file == base
    };
    let paths = paths();
    assert_eq!(paths.iter().find(is_left_out), None);
    for list in ["tools", "agents", "mcp_servers"] {
        assert!(paths.iter().any(|path| path[0] == list && path[1] == "[]" && path.len() > 3), "{list}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        rng_seed: RngSeed::Fixed(20_261_124),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_number_has_bounds_that_name_its_key(path in prop::sample::select(paths()), value in extreme()) {
        let mut file: Table = BASE.parse().unwrap();
        put(&mut file, &path, &value);
        let text = toml::to_string(&file).unwrap();
        match Config::read("reveille.toml", &text, &Environment::of(&[])) {
            Ok(loaded) => compute(&loaded.config),
            Err(error) => {
                let (said, key) = (error.to_string(), path.last().unwrap());
                let near = path[..path.len().saturating_sub(1)].join(".").replace("[]", "0");
                prop_assert!(said.contains(key.as_str()) || said.contains(&near), "{text}\n{said}");
            }
        }
    }

    #[test]
    fn extremes_together_panic_nowhere_and_what_is_built_of_them_is_judged(
        values in prop::collection::vec((prop::sample::select(paths()), extreme()), 2..12),
    ) {
        let mut file: Table = BASE.parse().unwrap();
        values.iter().for_each(|(path, value)| put(&mut file, path, value));
        if let Ok(loaded) = Config::read("reveille.toml", &toml::to_string(&file).unwrap(), &Environment::of(&[])) {
            compute(&loaded.config);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            match validate(&loaded.config, Path::new("/nowhere"), &Clock::system(), AppAdditions::default()) {
                Ok(_) => compute_of_tools(&loaded.config),
                Err(faults) => prop_assert!(!faults.is_empty()),
            }
        }
    }
}

#[test]
fn retention_of_a_million_years_is_a_fault() {
    let read = |days: &str| {
        let text = format!("[engine]\nretention_days = {days}\n");
        Config::read("reveille.toml", &text, &Environment::of(&[])).map(|loaded| compute(&loaded.config))
    };
    let error = read("999999999").unwrap_err().to_string();
    assert_eq!(error, "reveille.toml:2:18: `engine.retention_days`: must be from 1 to 36500");
    read("36500").unwrap();
}
