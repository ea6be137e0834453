//! The environment of the templates, and the headers of the pages.
//!
//! Every text is escaped, with hidden characters made visible. A value that is not there is shown as nothing: pages
//! show answers of the API, in which fields may be absent.

use std::sync::LazyLock;

use axum::response::Response;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, context};
use serde_json::Value as Json;

use crate::base::template::html::{MarkupPlace, escape_html};
use crate::base::unicode_safety::escape_hidden;
use crate::http::pages::{guard_by, template_words};
use crate::http::ui::frame::assets::{script_href, style_href};
use crate::http::ui::frame::filters;
use crate::http::ui::frame::templates::TEMPLATES;
use crate::ports::channel::templates::phrases::Phrases;

/// The policy of every page: files, forms and streams of ours alone, no script and no style in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(environment);

/// Shows a page in the frame.
///
/// # Errors
/// The template fails.
pub fn render(template: &str, frame: &Json, page: &Json) -> Result<String, Error> {
    let template = ENVIRONMENT.get_template(template)?;
    template.render(context! { frame => Value::from(Serde(frame)), page => Value::from(Serde(page)) })
}

/// The answer with the headers of every page.
pub fn secured(mut response: Response) -> Response {
    guard_by(&mut response, POLICY);
    response
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the usual delimiters are valid"));
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out: &mut Output, _: &mut State, value: &Value| Ok(out.write_str(&markup(value)?)?));
    filters::add_to(&mut environment);
    environment.add_global("style_href", style_href());
    environment.add_global("script_href", script_href());
    // of the parts of the link pages
    environment.add_global("words", template_words(Phrases::english()));
    for (name, text) in TEMPLATES {
        environment.add_template(name, text).expect("the templates of the dashboard are tested");
    }
    environment
}

/// A value as markup: what a template made as it is, every other text escaped and visible.
fn markup(value: &Value) -> Result<String, Error> {
    let text = match value.as_str() {
        Some(text) if value.is_safe() => return Ok(text.to_owned()),
        Some(text) => escape_hidden(text),
        None if value.is_none() || value.is_undefined() => return Ok(String::new()),
        None if value.is_number() => value.to_string(),
        None => match bool::try_from(value.clone()) {
            Ok(true) => "yes".to_owned(),
            Ok(false) => "no".to_owned(),
            Err(_) => {
                let why = format!("a value of the kind `{}` is shown by a filter", value.kind());
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        },
    };
    Ok(escape_html(&text, MarkupPlace::Quoted))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A template of a test, shown with this page.
    fn shown(template: &str, page: Json) -> String {
        let mut environment = environment();
        environment.add_template("test.html", template).unwrap();
        let context = context! { page => Value::from(Serde(page)) };
        environment.get_template("test.html").unwrap().render(context).map_err(|error| error.to_string()).unwrap()
    }

    #[test]
    fn every_template_can_be_read() {
        let environment = environment();
        assert_eq!(environment.templates().count(), TEMPLATES.len());
    }

    #[test]
    fn text_from_outside_is_never_markup_and_hidden_characters_are_seen() {
        let text = "<script>alert('a\"&b')</script>{{ page }}\u{202e}";
        let escaped = "&lt;script&gt;alert(&#39;a&quot;&amp;b&#39;)&lt;/script&gt;{{ page }}\u{27e6}U+202E\u{27e7}";
        assert_eq!(shown("<p>{{ page }}</p>", json!(text)), format!("<p>{escaped}</p>"));
        assert_eq!(shown("{{ page.a.b }}{{ page.c }}|{{ page.d }}", json!({ "d": true })), "|yes");
    }

    #[test]
    fn page_in_the_frame_says_who_reads_it_and_what_was_done() {
        let frame = json!({ "title": "Tasks", "reader": "token:7", "done": "It is paused.", "sections": [],
            "form_token": "t" });
        let text = render("failure.html", &frame, &json!({ "title": "a <b>", "sentences": ["c"] })).unwrap();
        assert!(text.contains("a &lt;b&gt;") && text.contains("It is paused.") && text.contains("token:7"), "{text}");
    }
}
