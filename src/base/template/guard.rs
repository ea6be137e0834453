//! Limits that keep a template cheap: on its length, its statements and operators, and its output.

use std::io;

use serde_json::Value;

use crate::base::invalid::did_you_mean;
use crate::base::template::insert::FILTERS;
use crate::base::template::limits::{OUTPUT_BYTES, TEMPLATE_BYTES};
use crate::base::template::{TemplateError, TemplateFault};

/// Places where texts or lists are put together inside of expressions: each may double what there is.
const JOINTS: usize = 16;
/// Operators, calls, members and tests in the code of one template, and `elif` among them. Each may nest what stands
/// before it one level deeper, and the reader of templates goes through the levels on its stack.
pub const OPERATORS: usize = 500;
/// `elif` in one template: each nests what follows it.
const BRANCHES: usize = 100;
/// The statements that there are.
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

/// Whether anything is inserted.
pub fn inserts(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|opening| text.contains(opening))
}

/// Refuses what is too long, and what could cost without limit.
pub fn before_parsing(text: &str) -> Result<(), TemplateFault> {
    let fault = |why: String| Err(TemplateFault(why));
    if text.len() > TEMPLATE_BYTES {
        return fault(format!("a template has at most {TEMPLATE_BYTES} bytes, this one {}", text.len()));
    }
    let (mut joints, mut operators, mut branches) = (0, 0, 0);
    for part in parts(text) {
        if let Some(word) = part.statement
            && !STATEMENTS.contains(&word)
        {
            let known = "`if`, `elif`, `else`, `endif`, `for`, `endfor`";
            return fault(format!("there is no statement `{word}` in these templates; there are {known}"));
        }
        if part.code.contains('*') {
            return fault("`*` can't be used in a template; compute in a `map` step".into());
        }
        if part.statement == Some("for") && part.code.contains("recursive") {
            return fault("a recursive `for` can't be used in a template".into());
        }
        if let Some(unknown) = filters_of(part.code).find(|name| !FILTERS.contains(name)) {
            let hint = did_you_mean(unknown, FILTERS);
            return fault(format!("unknown filter `{unknown}`{hint}; there are {}", FILTERS.join(", ")));
        }
        joints += part.code.matches(['~', '+']).count();
        operators += operators_of(part.code);
        branches += usize::from(part.statement == Some("elif"));
    }
    match (joints, operators, branches) {
        (0..=JOINTS, 0..=OPERATORS, 0..=BRANCHES) => Ok(()),
        (0..=JOINTS, 0..=OPERATORS, _) => fault(format!("at most {BRANCHES} of `elif` in one template; split it up")),
        (0..=JOINTS, ..) => {
            fault(format!("at most {OPERATORS} operators, members and calls in one template, this one has {operators}"))
        }
        _ => fault(format!("at most {JOINTS} of `~` and `+` in one template; split it up")),
    }
}

/// Counts the signs and words that may nest an expression: those within quoted texts, too, because where a text ends is
/// for the reader to say.
fn operators_of(code: &str) -> usize {
    let signs = code.matches(['-', '+', '~', '/', '%', '<', '>', '=', '!', '.', '(', '[', '{', '|']).count();
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    signs + words.filter(|word| ["not", "and", "or", "in", "is", "if", "else"].contains(word)).count()
}

/// The names behind each `|` that stands in no text.
fn filters_of(code: &str) -> impl Iterator<Item = &str> {
    let mut quote = None;
    let bars = code.char_indices().filter(move |(_, c)| {
        match (quote, *c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(*c),
            _ => {}
        }
        quote.is_none() && *c == '|'
    });
    bars.map(|(at, _)| {
        let name = code[at + 1..].trim_start();
        &name[..name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len())]
    })
}

/// One `{{ … }}` or `{% … %}`.
pub struct TemplatePart<'a> {
    pub code: &'a str,
    /// The first word of a statement.
    pub statement: Option<&'a str>,
}

/// The code of a template. What looks like a closing inside of a text ends the part too early and leaves the rest
/// unseen, so a part goes on to the last closing before the next opening.
pub fn parts(text: &str) -> Vec<TemplatePart<'_>> {
    let mut parts = Vec::new();
    for opening in ["{{", "{%"] {
        for piece in text.split(opening).skip(1) {
            let word = piece.trim_start_matches(['-', '+']).trim_start();
            let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
            let closing = if opening == "{{" { "}}" } else { "%}" };
            let code = &piece[..piece.rfind(closing).unwrap_or(piece.len())];
            parts.push(TemplatePart { code, statement: (opening == "{%").then_some(&word[..end]) });
        }
    }
    parts
}

/// The bytes of a value as JSON; refuses one that is larger than what a template may give.
pub fn affordable(value: &Value) -> Result<usize, TemplateError> {
    let mut output = BoundedOutput::default();
    match serde_json::to_writer(&mut output, value) {
        Ok(()) => Ok(output.written()),
        Err(_) => Err(too_long()),
    }
}

/// The error of a template that gives more than [`OUTPUT_BYTES`].
pub fn too_long() -> TemplateError {
    TemplateError::Failed(format!("the template gives more than {OUTPUT_BYTES} bytes"))
}

/// The output of a template, which takes at most [`OUTPUT_BYTES`].
#[derive(Default)]
pub struct BoundedOutput {
    bytes: Vec<u8>,
    full: bool,
}

impl BoundedOutput {
    /// Whether something found no room.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Bytes that were written.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    /// The text that was written.
    pub fn text(self) -> Result<String, TemplateError> {
        String::from_utf8(self.bytes).map_err(|_| TemplateError::Failed("the template gives no text".into()))
    }
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES {
            self.full = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::template::limits::FUEL;
    use crate::base::template::{TemplateNames, TextTemplates, Values};

    fn read(text: &str) -> Result<crate::base::template::Template, TemplateFault> {
        TextTemplates::default().read(text, TemplateNames { variables: &["event"], steps: &[] })
    }

    #[test]
    fn template_of_unbounded_cost_is_refused() {
        let refused = |text: &str, why: &str| {
            let fault = read(text).unwrap_err();
            assert!(fault.0.contains(why), "{text}: {fault}");
        };
        assert!(read(&"x".repeat(TEMPLATE_BYTES)).is_ok());
        assert!(read(&format!("{{{{ {} }}}}", vec!["event"; JOINTS + 1].join(" ~ "))).is_ok());
        refused(&"x".repeat(TEMPLATE_BYTES + 1), "at most 65536 bytes");
        refused("{{ 'a' * 100000000 }}", "`*`");
        refused("{{ '}}' * 100000000 }}", "`*`");
        refused("{% set a = event %}", "no statement `set`");
        refused("{%- macro a() %}{% endmacro %}", "no statement `macro`");
        refused("{{ event | lenght }}", "unknown filter `lenght`; did you mean `length`?");
        assert!(read("{{ event ~ ' | x' | upper }}").is_ok());
        refused("{% include 'x' %}", "no statement `include`");
        refused("{% for a in event recursive %}{% endfor %}", "recursive");
        refused(&format!("{{{{ {} }}}}", vec!["event"; 18].join(" ~ ")), "split it up");
        assert!(read("2 * 3 + 4 ~ {{ event }}").is_ok(), "outside of expressions they are text");
    }

    #[test]
    fn deepest_expression_that_is_admitted_fits_the_smallest_stack() {
        let most = |begin: &str, one: &str, end: &str, count: usize| format!("{begin}{}{end}", one.repeat(count));
        let code = move |begin: &str, one: &str, end: &str, count| {
            let text = most(&format!("{{{{ {begin}"), one, &format!("{end} }}}}"), count);
            // the reader refuses a token that is no operator of the language, and it must not nest either
            let _ = read(&text).map(|template| template.value(&Values::default()));
            text
        };
        // as small as the stack of any thread that reads templates, in a build that is not optimised: there a level
        // takes up to 2.3 KiB
        let deep = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
            for (begin, one, end) in [
                ("", "not ", "1"),
                ("", "-", "1"),
                ("event", ".a", ""),
                ("1", "-1", ""),
                ("1", "/1", ""),
                ("1", " and 1", ""),
                ("1", " or 1", ""),
                ("1", " is odd", ""),
                ("1", " == 1", ""),
                ("1", " in 1", ""),
                ("event", "()", ""),
                ("event", "['a']", ""),
                ("event", "|upper", ""),
                ("1", " if 1 else 1", ""),
            ] {
                let each = operators_of(one);
                let text = code(begin, one, end, OPERATORS / each);
                assert!(before_parsing(&text).is_ok(), "{one}");
                let beyond = code(begin, one, end, OPERATORS / each + 1);
                assert!(read(&beyond).unwrap_err().0.contains("at most 500 operators"), "{one}");
            }
            let branches = |count: usize| most("{% if 0 %}", "{% elif 0 %}", "{% endif %}", count);
            assert_eq!(read(&branches(BRANCHES)).unwrap().text(&Values::default()).unwrap(), "");
            assert!(read(&branches(BRANCHES + 1)).unwrap_err().0.contains("at most 100 of `elif`"));
        });
        deep.unwrap().join().unwrap();
        assert!(read(&"Dear {{ event.name }}, ".repeat(OPERATORS)).is_ok(), "members of many insertions are admitted");
    }

    #[test]
    fn work_and_output_are_bounded() {
        let most = read("{{ event }}{{ event[:1] }}").unwrap();
        for (length, fits) in [(OUTPUT_BYTES - 1, true), (OUTPUT_BYTES, false)] {
            let mut values = Values::default();
            values.set("event", &json!("x".repeat(length)));
            assert_eq!(most.text(&values).is_ok(), fits, "{length}");
        }
        let mut values = Values::default();
        values.set("event", &json!({ "long": "x".repeat(200_000), "list": vec![0; 500], "other": vec![0; 500] }));
        let failed = |text: &str| read(text).unwrap().value(&values).unwrap_err();
        assert_eq!(failed("{{ event.long }}{{ event.long }}"), too_long());
        assert_eq!(failed("{{ event.long ~ event.long }}"), too_long());
        assert_eq!(failed("{{ event.long | replace('x', event.long) }}"), too_long());
        assert_eq!(failed("{{ event.list | join(event.long) }}"), too_long());
        let searched = "{% for a in event.list %}{% if 'y' in event.long %}.{% endif %}{% endfor %}";
        assert_eq!(failed(searched), TemplateError::Failed("the template takes too much work".into()));
        let compared = "{% for a in event.list %}{% if event.list == event.other %}{% endif %}{% endfor %}";
        assert_eq!(failed(compared), TemplateError::Failed("the template takes too much work".into()));
        let filtered = "{% for a in event.list %}{{ event.long | upper | length }}{% endfor %}";
        assert_eq!(failed(filtered), TemplateError::Failed("the template takes too much work".into()));
        let honest = "{% for a in event.list %}{% if a == 0 and a in [0, 1] %}{{ loop.index }} {% endif %}{% endfor %}";
        values.set("event", &json!({ "long": "x".repeat(20_000), "list": vec![0; 200] }));
        assert!(read(honest).unwrap().text(&values).unwrap().ends_with(" 200 "));
        values.set("event", &json!({ "long": "x".repeat(200_000), "list": vec![0; 500], "other": vec![0; 500] }));
        let failed = |text: &str| read(text).unwrap().value(&values).unwrap_err();
        let loops =
            "{% for a in event.list %}{% for b in event.list %}{% if a > b %}.{% endif %}{% endfor %}{% endfor %}";
        assert_eq!(failed(loops), TemplateError::Failed("the template takes too much work".into()));
    }

    #[test]
    fn rendering_has_its_fuel_and_ends_with_it() {
        let round = read("{% for a in event %}{{ a }}{% endfor %}").unwrap();
        let render = |items: usize| {
            let mut values = Values::default();
            values.set("event", &json!(vec![7; items]));
            round.text(&values)
        };
        // the longest list that is gone through: each item takes some instructions of its own
        let (mut most, mut beyond) = (FUEL as usize / 20, FUEL as usize);
        while beyond - most > 1 {
            let middle = (most + beyond) / 2;
            *if render(middle).is_ok() { &mut most } else { &mut beyond } = middle;
        }
        let each = FUEL as usize / most;
        assert!((3..=10).contains(&each), "{most} items of {each} instructions");
        assert_eq!(render(most), Ok("7".repeat(most)));
        assert_eq!(render(beyond), Err(TemplateError::Failed("the template takes too much work".into())));
    }
}
