//! The environment of the templates: strict about names, and with HTML escaping of everything that is inserted.
//!
//! A text is shown with its hidden characters made visible, so that nothing runs that a person could not read. The
//! filter `exact` escapes a text and leaves it otherwise as it is: the value of a form field, which comes back. A
//! phrase with markup in it is made by `words.say(name, part=…)`: the words are escaped, and so is each part that no
//! template made.

use std::sync::{Arc, LazyLock};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Object, Serde, Value, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context};
use serde::Serialize;

use crate::base::template::html::{MarkupPlace, escape_html};
use crate::base::unicode_safety::escape_hidden;
use crate::http::pages::style::STYLE;
use crate::ports::channel::templates::phrases::{PhrasePiece, Phrases, pieces};

/// Every template by its name.
const TEMPLATES: [(&str, &str); 19] = [
    ("layout.html", include_str!("layout.html")),
    ("notice.html", include_str!("notice.html")),
    ("rows.html", include_str!("rows.html")),
    ("message.html", include_str!("message.html")),
    ("approval.html", include_str!("approval.html")),
    ("approval_all.html", include_str!("approval_all.html")),
    ("approval_asker.html", include_str!("approval_asker.html")),
    ("approval_card.html", include_str!("approval_card.html")),
    ("approval_changes.html", include_str!("approval_changes.html")),
    ("approval_controls.html", include_str!("approval_controls.html")),
    ("approval_faults.html", include_str!("approval_faults.html")),
    ("approval_field.html", include_str!("approval_field.html")),
    ("approval_head.html", include_str!("approval_head.html")),
    ("approval_no_answer.html", include_str!("approval_no_answer.html")),
    ("approval_questions.html", include_str!("approval_questions.html")),
    ("approval_settled.html", include_str!("approval_settled.html")),
    ("connect.html", include_str!("connect.html")),
    ("connect_declined.html", include_str!("connect_declined.html")),
    ("connect_done.html", include_str!("connect_done.html")),
];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// Renders a template in these words.
///
/// # Errors
/// The template names something that is not there.
pub fn render(template: &str, words: &Phrases, title: &str, page: impl Serialize) -> Result<String, Error> {
    let template = ENVIRONMENT.get_template(template)?;
    let (lang, words) = (words.lang(), template_words(words));
    template.render(context! { lang, words, title, page => Value::from(Serde(page)) })
}

/// Phrases as templates see them, as `words`.
pub fn template_words(words: &Phrases) -> Value {
    Value::from_object(PagePhrases(words.clone()))
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters are valid"));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out: &mut Output, _: &mut State, value: &Value| Ok(out.write_str(&markup(value)?)?));
    environment.add_filter("exact", |text: &str| Value::from_safe_string(escape_html(text, MarkupPlace::Quoted)));
    environment.add_global("style", Value::from_safe_string(STYLE.to_owned()));
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).expect("the templates of pages are tested");
    }
    environment
}

/// A value as markup: what a template made as it is, every other text escaped and visible.
fn markup(value: &Value) -> Result<String, Error> {
    let text = match value.as_str() {
        Some(text) if value.is_safe() => return Ok(text.to_owned()),
        Some(text) => escape_hidden(text),
        None if value.is_number() => value.to_string(),
        None => {
            let why = format!("a value of the kind `{}` has no place on a page", value.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    };
    Ok(escape_html(&text, MarkupPlace::Quoted))
}

/// The phrases of the reader's language, as a template sees them: `words.approve`, `words.say("left", left=…)`.
#[derive(Debug)]
struct PagePhrases(Phrases);

impl PagePhrases {
    /// A phrase with these parts in it.
    fn phrase(&self, name: &str, parts: &Kwargs) -> Result<Value, Error> {
        let phrase = self.0.find(name).ok_or_else(|| missing_phrase(format!("there is no phrase `{name}`")))?;
        let mut text = String::new();
        for piece in pieces(phrase) {
            match piece {
                PhrasePiece::Words(words) => text.push_str(&escape_html(words, MarkupPlace::Quoted)),
                PhrasePiece::Insert(part) => match parts.peek::<Option<Value>>(part)? {
                    Some(value) => text.push_str(&markup(&value)?),
                    None => return Err(missing_phrase(format!("the phrase `{name}` lacks its part `{part}`"))),
                },
            }
        }
        Ok(Value::from_safe_string(text))
    }
}

fn missing_phrase(why: String) -> Error {
    Error::new(ErrorKind::UndefinedError, why)
}

impl Object for PagePhrases {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.find(key.as_str()?).map(Value::from)
    }

    fn call_method(self: &Arc<Self>, _: &mut State, method: &str, args: &[Value]) -> Result<Value, Error> {
        if method != "say" {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        let (name, parts): (&str, Kwargs) = from_args(args)?;
        self.phrase(name, &parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, page: impl Serialize) -> Result<String, String> {
        let mut environment = environment();
        environment.add_template("test.html", template).unwrap();
        let words = template_words(Phrases::english());
        let context = context! { words, page => Value::from(Serde(page)) };
        environment.get_template("test.html").unwrap().render(context).map_err(|error| error.to_string())
    }

    #[test]
    fn text_from_outside_is_never_markup() {
        let text = "<script>alert('a\"&b')</script>{{ words.yes }}\u{202e}";
        let escaped = "&lt;script&gt;alert(&#39;a&quot;&amp;b&#39;)&lt;/script&gt;{{ words.yes }}";
        assert_eq!(rendered("<p>{{ page }}</p>", text).unwrap(), format!("<p>{escaped}\u{27e6}U+202E\u{27e7}</p>"));
        assert_eq!(rendered("{{ page | exact }}", text).unwrap(), format!("{escaped}\u{202e}"));
    }

    #[test]
    fn phrase_is_escaped_around_the_parts_that_are_put_in() {
        let made = "{% set tool %}<code>{{ page }}</code>{% endset %}{{ words.say('type_code', code=tool) }}";
        let expected = "This can’t be undone. To approve it, type <code>{code} &lt;b&gt;</code>";
        assert_eq!(rendered(made, "{code} <b>").unwrap(), expected);
        let plain = "{{ words.say('decided', who=page, at=7) }}";
        assert_eq!(rendered(plain, "<b>{at}</b>").unwrap(), "Decided by &lt;b&gt;{at}&lt;/b&gt;, 7.");
    }

    #[test]
    fn name_that_is_not_there_is_an_error_and_never_empty() {
        for template in [
            "{{ page.nothing }}",
            "{% if page.nothing %}{% endif %}",
            "{{ words.nothing }}",
            "{{ words.say('nothing') }}",
            "{{ words.say('decided', who=page) }}",
            "{{ none }}",
            "{{ true }}",
        ] {
            assert!(rendered(template, "x").is_err(), "{template}");
        }
    }

    /// The names that templates write out, of phrases and of their parts, are in the catalogue.
    #[test]
    fn every_phrase_that_a_template_names_exists_and_is_given_its_parts() {
        let (english, mut count) = (Phrases::english(), 0);
        for (file, text) in TEMPLATES {
            for (at, _) in text.match_indices("words.") {
                let rest = &text[at + "words.".len()..];
                let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let name = &rest[..rest.find(|c| !is_of_name(c)).unwrap()];
                let text = rest.strip_prefix("say(\"").and_then(|text| text.split_once('"'));
                let (name, parts) = match (name, text) {
                    ("say", None) => continue,
                    ("say", Some((name, parts))) => (name, parts.split_once(") }}").unwrap().0),
                    _ => (name, ""),
                };
                let phrase = english.find(name).unwrap_or_else(|| panic!("{file}: no phrase `{name}`"));
                for piece in pieces(phrase) {
                    if let PhrasePiece::Insert(part) = piece {
                        assert!(parts.contains(&format!("{part}=")), "{file}: `{name}` lacks `{part}`");
                    }
                }
                count += 1;
            }
        }
        assert!(count > 40, "{count}");
    }
}
