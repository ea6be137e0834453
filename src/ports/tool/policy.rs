//! `[tool_policies.<name>]`, and `retry`, `cache` and `output_level` inside `[[tools]]`: how often calls of a tool are
//! repeated, whether their results are kept for a while, and how much of them the model is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::invalid::{ValidationErrors, did_you_mean, escape};
use crate::ports::tool::output::DefaultLevel;
use crate::ports::tool::{Definition, ToolFailure};

/// The failures that time may heal.
const RETRYABLE: [ToolFailure; 4] =
    [ToolFailure::Timeout, ToolFailure::RateLimit, ToolFailure::ResourceError, ToolFailure::TransientError];

/// How calls of one tool are treated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolPolicy {
    /// How calls that failed are repeated.
    pub retry: ToolRetry,
    /// Whether results are kept for an hour; for tools that only read.
    pub cache: bool,
    /// How much of a result the model is shown where its call does not say; for tools that only read. `None`: as the
    /// tool itself has it, which is all of it for most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_level: Option<DefaultLevel>,
}

/// How calls that failed are repeated. A call that is not idempotent is repeated only where it was not sent.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolRetry {
    /// Repetitions of one call, at most 10; 0: none.
    pub max_retries: u32,
    /// The failures that are repeated: `timeout`, `rate_limit`, `resource_error`, `transient_error`.
    pub on: Vec<ToolFailure>,
    /// Seconds before the first repetition, at most 60.
    pub first_wait: f64,
    /// Each wait is so many times the one before, from 1 to 10.
    pub wait_factor: f64,
    /// The longest wait, in seconds, at most 300.
    pub longest_wait: f64,
    /// The time limit of each try is so many times that of the one before, from 1 to 10.
    pub timeout_factor: f64,
    /// The longest limit to which repetitions raise it, in seconds, at most 3,600. A limit beyond it stays as it is.
    pub longest_timeout: f64,
}

impl Default for ToolRetry {
    fn default() -> ToolRetry {
        ToolRetry {
            max_retries: 3,
            on: vec![ToolFailure::Timeout, ToolFailure::ResourceError],
            first_wait: 1.0,
            wait_factor: 1.5,
            longest_wait: 10.0,
            timeout_factor: 2.0,
            longest_timeout: 300.0,
        }
    }
}

impl ToolRetry {
    /// The wait before the repetition of this number, 1 for the first.
    pub fn wait(&self, number: u32) -> Duration {
        let seconds = self.first_wait * self.wait_factor.powi(number.saturating_sub(1) as i32);
        Duration::from_secs_f64(seconds.min(self.longest_wait))
    }

    /// The time limit of the try after one with this limit.
    pub fn next_limit(&self, limit: Duration) -> Duration {
        let longest = Duration::from_secs_f64(self.longest_timeout).max(limit);
        limit.mul_f64(self.timeout_factor).min(longest)
    }

    /// Adds the values that make no sense, below `place`.
    pub fn check(&self, place: &str, faults: &mut ValidationErrors) {
        if self.max_retries > 10 {
            faults.add(format!("{place}/max_retries"), "must be at most 10");
        }
        for (index, kind) in self.on.iter().enumerate().filter(|(_, kind)| !RETRYABLE.contains(kind)) {
            let known = RETRYABLE.map(ToolFailure::as_str).join(", ");
            let message = format!("time does not heal `{}`; must be one of {known}", kind.as_str());
            faults.add(format!("{place}/on/{index}"), message);
        }
        let bounds = [
            ("first_wait", self.first_wait, 0.0, 60.0, "seconds"),
            ("wait_factor", self.wait_factor, 1.0, 10.0, "times"),
            ("longest_wait", self.longest_wait, 0.0, 300.0, "seconds"),
            ("timeout_factor", self.timeout_factor, 1.0, 10.0, "times"),
            ("longest_timeout", self.longest_timeout, 1.0, 3600.0, "seconds"),
        ];
        for (key, value, least, most, unit) in bounds {
            if !(least..=most).contains(&value) {
                faults.add(format!("{place}/{key}"), format!("must be from {least} to {most} {unit}"));
            }
        }
    }
}

impl ToolPolicy {
    /// Adds what is wrong with the policy of this tool, below `place`.
    pub fn check(&self, tool: &Definition, place: &str, faults: &mut ValidationErrors) {
        self.retry.check(&format!("{place}/retry"), faults);
        if self.cache && !tool.only_reads() {
            let message = format!("`{}` does more than read, so its results can't be kept", tool.name);
            faults.add(format!("{place}/cache"), message);
        }
        if self.output_level.is_some() && !tool.only_reads() {
            let message = format!("`{}` does more than read, so a call can't be made again to see the rest", tool.name);
            faults.add(format!("{place}/output_level"), message);
        }
    }
}

/// The policies of `[tool_policies]`, held against the tools that there are; those of declared tools, which `declared`
/// has, stand in `[[tools]]` and nowhere else. Pointers begin with `/tool_policies`.
pub fn check_named(
    named: &BTreeMap<String, ToolPolicy>,
    tools: &[&Definition],
    declared: &[&str],
    faults: &mut ValidationErrors,
) {
    for (name, policy) in named {
        let place = format!("/tool_policies/{}", escape(name));
        match tools.iter().find(|tool| tool.name == *name) {
            Some(_) if declared.contains(&name.as_str()) => {
                faults.add(
                    place,
                    "say this in the tool's own entry of [[tools]], as `retry`, `cache` and `output_level`",
                );
            }
            Some(tool) => policy.check(tool, &place, faults),
            None => {
                let near = did_you_mean(name, tools.iter().map(|tool| tool.name.as_str()));
                faults.add(place, format!("unknown tool `{name}`{near}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::approval::{Category, Consequence};

    fn tool(name: &str, category: Category) -> Definition {
        Definition::new(name, "x", json!({ "type": "object" }), category, Consequence::Low)
    }

    fn policy(written: serde_json::Value) -> ToolPolicy {
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn waits_and_limits_grow_up_to_their_longest() {
        let retry = ToolRetry::default();
        assert_eq!([1, 2, 3, 20].map(|number| retry.wait(number).as_millis()), [1000, 1500, 2250, 10_000]);
        let limits = [60, 200, 900].map(|seconds| retry.next_limit(Duration::from_secs(seconds)).as_secs());
        assert_eq!(limits, [120, 300, 900], "a limit beyond the longest is not shortened");
        let own = ToolRetry { first_wait: 0.5, wait_factor: 1.0, timeout_factor: 1.0, ..retry };
        assert_eq!((own.wait(7).as_millis(), own.next_limit(Duration::from_secs(9)).as_secs()), (500, 9));
    }

    #[test]
    fn policy_that_makes_no_sense_is_refused_with_its_place() {
        let tools = [tool("read", Category::Read), tool("send", Category::SideEffect), tool("own", Category::Read)];
        let named = BTreeMap::from([
            (
                "read".to_owned(),
                policy(
                    json!({ "cache": true, "output_level": "brief", "retry": { "max_retries": 10, "on": ["rate_limit"] } }),
                ),
            ),
            (
                "send".to_owned(),
                policy(
                    json!({ "cache": true, "retry": { "max_retries": 11, "wait_factor": 0.5 }, "output_level": "auto" }),
                ),
            ),
            ("sent".to_owned(), policy(json!({}))),
            ("own".to_owned(), policy(json!({ "cache": true }))),
        ]);
        let mut faults = ValidationErrors::new();
        check_named(&named, &tools.iter().collect::<Vec<_>>(), &["own"], &mut faults);
        ToolRetry { on: vec![ToolFailure::NotFound], longest_wait: f64::NAN, ..ToolRetry::default() }
            .check("/tools/0/retry", &mut faults);
        let told: Vec<String> = faults.0.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
        assert_eq!(
            told,
            [
                "/tool_policies/own: say this in the tool's own entry of [[tools]], as `retry`, `cache` and `output_level`",
                "/tool_policies/send/retry/max_retries: must be at most 10",
                "/tool_policies/send/retry/wait_factor: must be from 1 to 10 times",
                "/tool_policies/send/cache: `send` does more than read, so its results can't be kept",
                "/tool_policies/send/output_level: `send` does more than read, so a call can't be made again to see the rest",
                "/tool_policies/sent: unknown tool `sent`; did you mean `send`?",
                "/tools/0/retry/on/0: time does not heal `not_found`; must be one of timeout, rate_limit, \
                 resource_error, transient_error",
                "/tools/0/retry/longest_wait: must be from 0 to 300 seconds",
            ]
        );
    }
}
