//! How hard a model thinks, how it may be asked less of, and what of a conversation its provider is to keep.

use crate::base::words::words;

words! {
    /// How much a model thinks before it answers.
    #[derive(PartialOrd, Ord)]
    pub enum ThinkingEffort {
        /// Not at all.
        None = "none",
        /// As little as it can.
        Minimal = "minimal",
        /// A little.
        Low = "low",
        /// As most are made to.
        Medium = "medium",
        /// Much.
        High = "high",
        /// Very much.
        ExtraHigh = "xhigh",
        /// As much as it can.
        Max = "max",
    }
}

words! {
    /// Whether a model thinks, and who decides how much.
    pub enum ThinkingMode {
        /// The model decides.
        Adaptive = "adaptive",
        /// Up to a budget of tokens.
        Enabled = "enabled",
        /// It does not think.
        Disabled = "disabled",
    }
}

words! {
    /// How long a provider keeps the beginning of a conversation for the calls that follow.
    #[derive(Default)]
    pub enum PromptCache {
        /// It is not asked to.
        Off = "off",
        /// Five minutes from its last use.
        #[default]
        FiveMinutes = "5m",
        /// An hour, which costs more.
        OneHour = "1h",
    }
}

impl ThinkingEffort {
    /// The levels that a failing call is tried with after this one, down to the least that the provider has.
    pub fn lower(self, provider: &str) -> impl Iterator<Item = ThinkingEffort> {
        let least = if provider == "anthropic" { ThinkingEffort::Low } else { ThinkingEffort::None };
        let levels = [ThinkingEffort::High, ThinkingEffort::Medium, ThinkingEffort::Low, ThinkingEffort::None];
        levels.into_iter().filter(move |level| *level < self && *level >= least)
    }
}

/// The line of a system message behind which stands what differs from run to run: the time, and what is known of the
/// recipient.
pub const RUN_HEADING: &str = "This run:";

/// The part of a system message that is the same in each run of an agent, and the part that differs, with its heading.
/// A cache knows a request by its beginning, so the stable part comes first.
pub fn stable_part(system: &str) -> (&str, Option<&str>) {
    let heading = system.match_indices(RUN_HEADING).find(|(at, _)| {
        let (before, behind) = (&system[..*at], &system[at + RUN_HEADING.len()..]);
        before.ends_with("\n\n") && behind.starts_with('\n')
    });
    match heading.filter(|(at, _)| !system[..*at].trim().is_empty()) {
        Some((at, _)) => (&system[..at], Some(&system[at..])),
        None => (system, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_part_of_a_system_message_ends_before_the_heading_of_the_run() {
        let whole = "Be brief.\nThis run: of salmon.\n\nThis run:\nCurrent time: noon.\n\nThis run:\n";
        let (stable, of_run) = stable_part(whole);
        assert_eq!(stable, "Be brief.\nThis run: of salmon.\n\n");
        assert_eq!(of_run, Some("This run:\nCurrent time: noon.\n\nThis run:\n"));
        for undivided in ["", "Be brief.", "\n\nThis run:\nnoon", "This run:\nnoon", "Be brief.\n\nThis run:"] {
            assert_eq!(stable_part(undivided), (undivided, None));
        }
    }

    #[test]
    fn levels_go_down_to_the_least_that_the_provider_has() {
        let lower =
            |effort: ThinkingEffort, provider| effort.lower(provider).map(ThinkingEffort::as_str).collect::<Vec<_>>();
        assert_eq!(lower(ThinkingEffort::Max, "openai"), ["high", "medium", "low", "none"]);
        assert_eq!(lower(ThinkingEffort::ExtraHigh, "anthropic"), ["high", "medium", "low"]);
        assert_eq!(lower(ThinkingEffort::Medium, "openai-responses"), ["low", "none"]);
        assert_eq!(lower(ThinkingEffort::Minimal, "openai"), ["none"]);
        assert!(lower(ThinkingEffort::Low, "anthropic").is_empty() && lower(ThinkingEffort::None, "openai").is_empty());
    }
}
