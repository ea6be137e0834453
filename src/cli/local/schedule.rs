//! `reveille schedule`: when a schedule fires, computed here; no service is asked.

use std::io::{self, BufRead, BufReader, Read};

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde_json::{Map, Value, json};

use crate::base::clock;
use crate::base::invalid::ValidationErrors;
use crate::cli::{CliFailure, Screen, typed};
use crate::domain::trigger::zone::{WallClock, parse_instant, parse_zone, shown_in};
use crate::domain::trigger::{DstFold, DstGap, InstantListing, Trigger};

/// How many fires are shown without being told.
const USUAL_COUNT: u64 = 5;
/// More would fill the memory before a line is printed.
const LARGEST_COUNT: u64 = 100_000;
/// Stands behind fewer fires than were asked for, where the schedule may go on.
const CUT: &str = "cut: what follows takes too many steps to compute, or too much of it is excluded";
/// Longest line of a batch, in bytes: a schedule is short.
const LONGEST_LINE: u64 = 64 * 1024;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print the next fires of a schedule
    Preview(PreviewArgs),
}

#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("source").required(true).args(["cron", "interval", "rrule", "at", "batch"])),
    after_help = "\
Examples:
  reveille schedule preview '0 8 * * *' --timezone Asia/Shanghai --count 5
  reveille schedule preview --interval 90m --from 2026-12-24T15:00:00Z
  echo '{\"cron\": \"0 0 L * *\", \"count\": 2}' | reveille schedule preview --batch"
)]
pub struct PreviewArgs {
    /// Cron expression: five fields, or six with seconds first; `@daily`, `L`, `W`, `#`
    #[arg(value_name = "CRON")]
    cron: Option<String>,
    /// Every so often: `5m`, `1h30m`, `PT15M`
    #[arg(long, value_name = "LENGTH")]
    interval: Option<String>,
    /// RFC 5545 recurrence rule
    #[arg(long, value_name = "RULE")]
    rrule: Option<String>,
    /// One instant
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// IANA time zone [default: UTC]
    #[arg(long, value_name = "ZONE", conflicts_with = "batch")]
    timezone: Option<String>,
    /// No fire before this; intervals and rules are counted from it
    #[arg(long, value_name = "TIME", conflicts_with = "batch")]
    start_at: Option<String>,
    /// No fire from this on
    #[arg(long, value_name = "TIME", conflicts_with = "batch")]
    end_at: Option<String>,
    /// A date or cron expression that is left out; may be given again
    #[arg(long, value_name = "DATE|EXPR", conflicts_with = "batch")]
    exclude: Vec<String>,
    /// When the clock jumps over a fixed time of day: run_after, skip
    #[arg(long, value_name = "RULE", conflicts_with = "batch")]
    dst_gap: Option<String>,
    /// When the clock shows a fixed time of day twice: first, both
    #[arg(long, value_name = "RULE", conflicts_with = "batch")]
    dst_fold: Option<String>,
    /// Fires after this; RFC 3339, or local time in the time zone [default: now]
    #[arg(long, value_name = "TIME", conflicts_with = "batch")]
    from: Option<String>,
    /// How many [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "batch")]
    count: Option<u64>,
    /// Read a schedule from each line of standard input, as JSON with `cron`, `interval` or `rrule`, `timezone`,
    /// `from` and `count`; answer each with a line, `{"fires": […]}` (with `"truncated": true` where further ones
    /// take too many steps to compute) or `{"error": …}`
    #[arg(long)]
    batch: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(command: Command, screen: &mut Screen) -> anyhow::Result<()> {
    let Command::Preview(args) = command;
    if args.batch {
        return Ok(batch(&mut BufReader::new(io::stdin().lock()), screen)?);
    }
    let listing = preview(&question(&args), clock::machine_now()).map_err(refused)?;
    if args.json {
        return Ok(screen.json(&listing_json(&listing))?);
    }
    Ok(show(&listing, args.timezone.as_deref(), screen)?)
}

/// `truncated` stands there only where it says something.
fn listing_json(InstantListing { instants, truncated }: &InstantListing) -> Value {
    let mut told = json!({ "fires": instants.iter().map(format_utc).collect::<Vec<_>>() });
    if *truncated {
        told["truncated"] = json!(true);
    }
    told
}

/// The typed arguments, in the form of a batch line.
fn question(args: &PreviewArgs) -> Map<String, Value> {
    let texts = [
        ("cron", &args.cron),
        ("interval", &args.interval),
        ("rrule", &args.rrule),
        ("at", &args.at),
        ("timezone", &args.timezone),
        ("start_at", &args.start_at),
        ("end_at", &args.end_at),
        ("dst_gap", &args.dst_gap),
        ("dst_fold", &args.dst_fold),
        ("from", &args.from),
    ];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), json!(text.as_ref()?))));
    let count = args.count.map(|count| ("count".to_owned(), json!(count)));
    let exclude = (!args.exclude.is_empty()).then(|| ("exclude".to_owned(), json!(args.exclude)));
    texts.chain(count).chain(exclude).collect()
}

/// The fires that a question asks for: the fields of a schedule, and `from` and `count`.
fn preview(question: &Map<String, Value>, now: DateTime<Utc>) -> Result<InstantListing, ValidationErrors> {
    let mut fields = question.clone();
    let mut faults = ValidationErrors::new();
    let (from, count) = (fields.remove("from"), fields.remove("count"));
    let from = from_of(from.unwrap_or_default(), fields.get("timezone"), now, &mut faults);
    let count = count_of(count.unwrap_or_default(), &mut faults);
    fields.insert("type".into(), json!("schedule"));
    let trigger = Trigger::parse(&Value::Object(fields), "", from, &mut faults);
    match trigger {
        Some(Trigger::Schedule(schedule)) if faults.is_empty() => {
            schedule.preview(from, from, count).map_err(|fault| ValidationErrors(vec![fault]))
        }
        _ => Err(faults),
    }
}

fn from_of(
    written: Value,
    timezone: Option<&Value>,
    now: DateTime<Utc>,
    faults: &mut ValidationErrors,
) -> DateTime<Utc> {
    // a wrong time zone is told once, by the trigger
    let zone = timezone.and_then(Value::as_str).and_then(|name| parse_zone(name).ok()).unwrap_or(Tz::UTC);
    let wall = WallClock::new(zone, DstGap::default(), DstFold::default());
    let read = match &written {
        Value::Null => return now,
        Value::String(text) => parse_instant(text, &wall),
        _ => Err("must be a text such as `2026-12-24T15:00:00Z`".into()),
    };
    read.unwrap_or_else(|why| {
        faults.add("/from", why);
        now
    })
}

fn count_of(written: Value, faults: &mut ValidationErrors) -> usize {
    let count = if written.is_null() { Some(USUAL_COUNT) } else { written.as_u64() };
    match count.filter(|count| (1..=LARGEST_COUNT).contains(count)) {
        Some(count) => count as usize,
        None => {
            faults.add("/count", format!("must be a number from 1 to {LARGEST_COUNT}"));
            1
        }
    }
}

/// Answers each line with a line; at once when no further line has arrived, so that a program may ask and wait.
fn batch(input: &mut BufReader<impl Read>, screen: &mut Screen) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return screen.flush();
        }
        if !line.ends_with(b"\n") && line.len() as u64 == LONGEST_LINE {
            input.skip_until(b'\n')?;
        }
        if !line.trim_ascii().is_empty() {
            screen.line(answer(&line).to_string())?;
        }
        if input.buffer().is_empty() {
            screen.flush()?;
        }
    }
}

fn answer(line: &[u8]) -> Value {
    let question: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(question) => question,
        Err(error) => return json!({ "error": format!("not a JSON object on one line: {error}") }),
    };
    match preview(&question, clock::machine_now()) {
        Ok(listing) => listing_json(&listing),
        Err(faults) => json!({ "error": faults.to_string() }),
    }
}

fn show(listing: &InstantListing, timezone: Option<&str>, screen: &mut Screen) -> io::Result<()> {
    match listing.instants.as_slice() {
        [] if !listing.truncated => screen.line("no fires")?,
        [] => {}
        fires => show_fires(fires, timezone, screen)?,
    }
    match listing.truncated {
        true => screen.line(CUT),
        false => Ok(()),
    }
}

fn show_fires(fires: &[DateTime<Utc>], timezone: Option<&str>, screen: &mut Screen) -> io::Result<()> {
    let zone = timezone.and_then(|name| parse_zone(name).ok()).filter(|zone| *zone != Tz::UTC);
    let Some(zone) = zone else {
        return fires.iter().try_for_each(|fire| screen.line(format!("{}  {}", fire.format("%a"), format_utc(fire))));
    };
    let local = |fire: &DateTime<Utc>| shown_in(*fire, zone).format("%a  %Y-%m-%d %H:%M:%S %:z").to_string();
    let rows = fires.iter().map(|fire| vec![local(fire), format_utc(fire)]).collect();
    screen.table(&["local time", "utc"], rows)
}

fn format_utc(fire: &DateTime<Utc>) -> String {
    fire.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn refused(faults: ValidationErrors) -> CliFailure {
    let faults = faults.0.into_iter();
    faults.fold(CliFailure::new("the schedule is not valid"), |failure, fault| {
        let place = fault.pointer.trim_start_matches('/').replace('/', ".");
        let named = typed::flag_name(typed::SCHEDULE_PREVIEW, &place);
        failure.detail(if named.is_empty() { fault.message } else { format!("{named}: {}", fault.message) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    fn answered(input: &str) -> Vec<Value> {
        let page = TextPage::default();
        let mut screen = Screen::plain(page.clone());
        batch(&mut BufReader::new(input.as_bytes()), &mut screen).unwrap();
        page.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn batch_answers_each_line_with_a_line() {
        let input = concat!(
            r#"{"cron": "0 8 * * *", "timezone": "Asia/Shanghai", "from": "2026-11-21T00:00:00Z", "count": 2}"#,
            "\n",
            r#"{"interval": "90m", "from": "2026-11-21T00:00:00Z", "count": 2}"#,
            "\n",
            r#"{"rrule": "FREQ=DAILY", "from": "2026-11-21T06:30:00Z", "count": 1}"#,
            "\n\n",
            r#"{"cron": "0 8 * * *", "timezone": "Europe/Berln"}"#,
            "\n",
            "no json\n",
            r#"{"cron": "30 2 29 3 *", "timezone": "Europe/Berlin", "from": "2026-03-29T00:00:00", "count": 1}"#,
        );
        let answers = answered(input);
        assert_eq!(answers[0], json!({ "fires": ["2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"] }));
        assert_eq!(answers[1], json!({ "fires": ["2026-11-21T01:30:00Z", "2026-11-21T03:00:00Z"] }));
        assert_eq!(answers[2], json!({ "fires": ["2026-11-22T06:30:00Z"] }));
        let error = answers[3]["error"].as_str().unwrap();
        assert!(error.contains("did you mean `Europe/Berlin`?"), "{error}");
        assert!(answers[4]["error"].as_str().unwrap().starts_with("not a JSON object on one line"));
        assert_eq!(answers[5], json!({ "fires": ["2026-03-29T01:00:00Z"] }), "the first instant after the gap");
        assert_eq!(answers.len(), 6);
    }

    #[test]
    fn line_without_end_is_refused_and_the_next_is_read() {
        let long = format!("{{\"cron\": \"{}\"}}", "* ".repeat(LONGEST_LINE as usize));
        let answers = answered(&format!("{long}\n{{\"interval\": \"5m\", \"count\": 1}}\n"));
        assert_eq!(answers.len(), 2);
        assert!(answers[0]["error"].is_string() && answers[1]["fires"].is_array());
    }

    #[test]
    fn wrong_counts_and_times_are_named() {
        let fault = |line: &str| answer(line.as_bytes())["error"].as_str().unwrap().to_owned();
        assert_eq!(fault(r#"{"cron": "@daily", "count": 0}"#), "/count: must be a number from 1 to 100000");
        assert!(fault(r#"{"cron": "@daily", "from": "soon"}"#).starts_with("/from: can't read `soon` as a time"));
    }

    #[test]
    fn preview_that_is_cut_says_so() {
        // a Sunday, and six days of seconds that are left out
        let question =
            json!({ "cron": "* * * * * *", "exclude": ["* * * * 1-6"], "from": "2026-11-22T23:59:58Z", "count": 9 });
        assert_eq!(
            answer(question.to_string().as_bytes()),
            json!({ "fires": ["2026-11-22T23:59:59Z"], "truncated": true })
        );
        let shown = |question: &Value| {
            let page = TextPage::default();
            let mut screen = Screen::plain(page.clone());
            let listing = preview(question.as_object().unwrap(), clock::machine_now()).unwrap();
            show(&listing, None, &mut screen).unwrap();
            drop(screen);
            page.text()
        };
        assert_eq!(shown(&question), format!("Sun  2026-11-22T23:59:59Z\n{CUT}\n"));
        let ends = json!({ "at": "2026-11-22T08:00:00Z", "from": "2026-11-22T07:00:00Z" });
        assert_eq!(shown(&ends), "Sun  2026-11-22T08:00:00Z\n");
    }
}
