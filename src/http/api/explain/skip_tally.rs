//! Fires that were skipped together, in sentences.

use crate::domain::run::skip_tally::is_tallied;
use crate::domain::run::{MissedInstants, Run};
use crate::http::api::explain::{rfc3339, why};

/// Explanation of a tally by itself.
pub(super) fn sentences(tally: &Run, fires: &MissedInstants) -> Vec<String> {
    let ends =
        if fires.count == Some(1) { "was skipped; this is its record." } else { "were skipped; this is their record." };
    let reason = tally.reason.as_deref().map(|reason| why(tally.state, reason));
    let sentences = [Some(format!("{} {ends}", told(fires))), reason, full(tally).map(str::to_owned)];
    sentences.into_iter().flatten().collect()
}

/// Why the record names no event. `None`: no record of its reason does.
fn full(tally: &Run) -> Option<&'static str> {
    let is_of_full_tenant = !is_tallied(tally.reason.as_deref()?);
    is_of_full_tenant.then_some("It names no events, because the tenant had stored all that it may.")
}

/// A tally beside what else there is to say.
pub(super) fn beside(tally: &Run, fires: &MissedInstants) -> String {
    let verb = if fires.count == Some(1) { "was" } else { "were" };
    format!("{} {verb} skipped ({}).{}", told(fires), tally.id, reason(tally))
}

/// A match that has no record of its own, but may be among the fires of a tally.
pub(super) fn probable(tally: &Run, fires: &MissedInstants) -> String {
    let skipped = match fires.count {
        Some(1) => format!("it was probably the fire at {} that was skipped", rfc3339(fires.to)),
        _ => format!("it was probably one of the {} that were skipped", told(fires)),
    };
    format!("It matches, and has no record of its own: {skipped} ({}).{}", tally.id, reason(tally))
}

/// How many fires were skipped when, such as "4,321 fires between 2027-03-01T08:00:01Z and 2027-03-01T08:59:58Z".
pub(super) fn told(fires: &MissedInstants) -> String {
    let (from, to) = (rfc3339(fires.from), rfc3339(fires.to));
    let count = match fires.count {
        Some(1) => "1 fire".to_owned(),
        Some(count) => format!("{} fires", grouped(count)),
        None => "more fires than were counted".to_owned(),
    };
    if from == to { format!("{count} at {to}") } else { format!("{count} between {from} and {to}") }
}

fn reason(tally: &Run) -> String {
    tally.reason.as_deref().map_or(String::new(), |reason| format!(" {}", why(tally.state, reason)))
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::run::RunState;

    fn fires(from: &str, to: &str, count: Option<u64>) -> MissedInstants {
        let at = |time: &str| format!("2027-03-01T{time}Z").parse().expect("an instant");
        MissedInstants { from: at(from), to: at(to), count }
    }

    #[test]
    fn skipped_fires_are_told_with_their_number_and_their_span() {
        let many = told(&fires("08:00:01", "08:59:58", Some(4321)));
        assert_eq!(many, "4,321 fires between 2027-03-01T08:00:01Z and 2027-03-01T08:59:58Z");
        assert_eq!(told(&fires("08:00:01", "08:00:01", Some(1))), "1 fire at 2027-03-01T08:00:01Z");
        assert_eq!(told(&fires("08:00:01", "08:00:01.5", Some(12))), "12 fires at 2027-03-01T08:00:01Z");
        assert!(told(&fires("08:00:01", "08:59:58", None)).starts_with("more fires than were counted between"));
    }

    #[test]
    fn record_of_a_full_tenant_says_why_it_names_no_events() {
        let of = |reason: &str| {
            let span = fires("08:00:01", "08:59:58", Some(2));
            let run = Run::queued(Uuid::nil(), Uuid::nil(), "ann", "h:", "event", span.to, span.to);
            let tally = Run { state: RunState::Skipped, reason: Some(reason.into()), ..run };
            sentences(&tally, &span).join(" ")
        };
        let told = of("too_old");
        assert!(told.contains("(`too_old`)") && told.ends_with("the tenant had stored all that it may."), "{told}");
        let told = of("stopped");
        assert!(told.ends_with("(`stopped`)."), "{told}");
    }

    #[test]
    fn thousands_of_a_number_have_commas_between_them() {
        let told = [0, 999, 1_000, 12_345, 1_234_567].map(grouped);
        assert_eq!(told, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
