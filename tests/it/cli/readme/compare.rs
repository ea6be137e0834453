//! Whether the output is the one that the page shows: ids, tokens and instants differ each time, all else is the same.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

/// Names in this run for an id, a token or a key's name on the page.
#[derive(Debug, Default)]
pub struct Names {
    real: HashMap<String, String>,
}

/// Ids, tokens, ids of keys, entries of a Redis stream.
static NAME: LazyLock<Regex> = LazyLock::new(|| {
    let forms = [
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "rv_[a-z]+_[0-9A-Za-z]+",
        "file-[0-9a-f]{8}",
        r"\b\d{13}-\d+\b",
        // of mails: the thread, and what divides their parts
        r"thread\.[0-9a-f]{32}",
        r"\b[0-9A-Za-z]{40}\b",
        // of links to the dashboard
        r"\b[0-9A-Za-z]{43}\b",
    ];
    Regex::new(&forms.join("|")).unwrap()
});

/// Texts that differ at another time, with their stand-ins.
static INSTANTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let forms = [
        // a mail's date, an instant, a weekday, a time of day in a sentence
        (r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000", "<date>"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| ?[+-]\d\d:\d\d)?", "<time>"),
        ("(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day", "<day>"),
        ("(?m)^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)  ", "<day>  "),
        (r"\bit is \d\d:\d\d\b", "it is <time>"),
        ("It started (at|.* after) its instant", "It started <soon>"),
        // the release that is compiled in may have grown old, which is told in lines of its own
        (r"(?m)^. time zones .*\n( +.*\n)*", "<time zones>\n"),
    ];
    forms.map(|(form, stands)| (Regex::new(form).unwrap(), stands)).into()
});

/// Any number of lines are left out here.
const LEFT_OUT: &str = "…";

impl Names {
    /// A text of the page with the names of this run.
    pub fn real(&self, text: &str) -> String {
        NAME.replace_all(text, |found: &regex::Captures| {
            self.real.get(&found[0]).cloned().unwrap_or_else(|| found[0].to_owned())
        })
        .into_owned()
    }

    /// Whether this was printed, and from now on the page's new names are those that stand in their places.
    pub fn take(&mut self, page: &str, printed: &str) -> bool {
        let (page, printed) = (timeless(page), timeless(printed));
        let (page, printed): (Vec<&str>, Vec<&str>) = (page.lines().collect(), printed.lines().collect());
        let Some(pairs) = aligned(&page, &printed) else { return false };
        let mut real = self.real.clone();
        for (page, printed) in pairs {
            for (name, found) in NAME.find_iter(page).zip(NAME.find_iter(printed)) {
                let known = real.entry(name.as_str().to_owned()).or_insert_with(|| found.as_str().to_owned());
                if known != found.as_str() {
                    return false;
                }
            }
        }
        self.real = real;
        true
    }
}

fn timeless(text: &str) -> String {
    let mut text = format!("{}\n", text.trim_end());
    for (form, stands) in INSTANTS.iter() {
        text = form.replace_all(&text, *stands).into_owned();
    }
    text
}

/// The lines of the page beside those that were printed, where all fit.
fn aligned<'a>(page: &[&'a str], printed: &[&'a str]) -> Option<Vec<(&'a str, &'a str)>> {
    match (page, printed) {
        ([], []) => Some(Vec::new()),
        ([LEFT_OUT, rest @ ..], _) => (0..=printed.len()).find_map(|skipped| aligned(rest, &printed[skipped..])),
        ([line, page @ ..], [found, printed @ ..]) if NAME.replace_all(line, "?") == NAME.replace_all(found, "?") => {
            let mut pairs = aligned(page, printed)?;
            pairs.push((line, found));
            Some(pairs)
        }
        _ => None,
    }
}

#[test]
fn names_and_instants_may_differ_and_nothing_else() {
    let (one, two) = ("01a1fbdb-14f8-7000-8000-400360e3b5a2", "01a1fbdb-16a5-7000-8000-677991e929dc");
    let mut names = Names::default();
    assert!(names.take(&format!("a {one} at 2026-11-21 02:07:00Z\n"), &format!("a {two} at 2027-01-01 12:00:00Z")));
    assert_eq!(names.real(&format!("show {one}")), format!("show {two}"));
    assert!(names.take(&format!("…\nb {one}\n…\n"), &format!("x\ny\nb {two}")));
    assert!(!names.take(one, one), "it has another name in this run");
    assert!(!names.take("a\n", "b\n") && !names.take("a\n", "a\nb\n") && !names.take("a\n…\nb\n", "a\n"));
    assert!(names.take("✓ time zones  new\nx\n", "! time zones  old\n              hint: renew\nx\n"));
}
