//! Templates that are looked through together: the embedded ones, or the operator's over them.
//!
//! All of the operator's names come before any embedded one, so that what an operator wrote is what people read. The
//! embedded ones lie beneath, to be extended and included, and for what the operator did not write.

use std::collections::BTreeMap;

use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Output, State, UndefinedBehavior};
use serde::Serialize;

use crate::domain::notification::MessageContext;
use crate::ports::channel::templates::name::{TemplateName, candidate_names};
use crate::ports::channel::templates::{MessageFormat, markup};

/// Steps that one rendering may take.
const FUEL: u64 = 200_000;
/// The first line of a `.txt`.
const SUBJECT: &str = "Subject:";
/// Behind the name of a template: its first line.
const SUBJECT_PART: &str = "#subject";
/// Language of the embedded templates whose names tell none.
pub const LANGUAGE: &str = "en";

/// The text, or the name of the template that failed and why.
pub type RenderResult = Result<String, (String, String)>;

/// Which of its parts is wanted of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    Subject,
    Body,
}

/// A set of templates.
#[derive(Clone)]
pub struct TemplateSet {
    engine: Environment<'static>,
    /// File names by their lower case, because languages are written either way.
    embedded: BTreeMap<String, String>,
    own: BTreeMap<String, String>,
}

/// Variables that a template sees.
#[derive(Serialize)]
struct RenderScene<'a> {
    #[serde(flatten)]
    context: &'a MessageContext,
    /// Language of the template that was found: the one in its name, and [`LANGUAGE`] where an embedded one tells none.
    lang: Option<&'a str>,
}

impl TemplateSet {
    /// Exactly these, which are tested to be right.
    pub fn embedded(templates: &[(&str, &str)]) -> TemplateSet {
        let mut set = TemplateSet { engine: engine(), embedded: BTreeMap::new(), own: BTreeMap::new() };
        for (name, text) in templates {
            add(&mut set.engine, name, text).expect("embedded templates are tested");
            set.embedded.insert(name.to_lowercase(), (*name).to_owned());
        }
        set
    }

    /// Adds one of the operator's.
    ///
    /// # Errors
    /// It can't be read; the line is said.
    pub fn add_own(&mut self, name: &str, text: &str) -> Result<(), String> {
        add(&mut self.engine, name, text)?;
        self.own.insert(name.to_lowercase(), name.to_owned());
        Ok(())
    }

    /// The file names of the operator's.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        self.own.values().map(String::as_str)
    }

    /// The most exact template for it, in the recipient's language if there is one; `None` where there is none of this
    /// format.
    pub fn render(
        &self,
        context: &MessageContext,
        channel: &str,
        format: MessageFormat,
        part: TemplateKind,
    ) -> Option<RenderResult> {
        let names = candidate_names(&context.purpose, &context.locale, channel, format);
        let found = |files: &'_ BTreeMap<String, String>| {
            names.iter().find_map(|name| files.get(&name.to_lowercase())).cloned()
        };
        let written_in = |name: &str| TemplateName::read(name).ok().and_then(|read| read.locale.map(str::to_owned));
        let (name, lang, context) = match found(&self.own) {
            Some(name) => {
                let lang = written_in(&name);
                (name, lang, context)
            }
            None => {
                let name = found(&self.embedded)?;
                let lang = written_in(&name).unwrap_or_else(|| LANGUAGE.to_owned());
                (name, Some(lang), context.main_message())
            }
        };
        let whole_name = if part == TemplateKind::Subject { format!("{name}{SUBJECT_PART}") } else { name.clone() };
        let scene = RenderScene { context, lang: lang.as_deref() };
        Some(self.rendered(&whole_name, &scene).map_err(|why| (name, why)))
    }

    /// The template of this name, which is none of those that are looked for.
    pub fn render_named(&self, name: &str, context: &MessageContext) -> Result<String, String> {
        self.rendered(name, &RenderScene { context, lang: Some(context.language.tag()) })
    }

    fn rendered(&self, name: &str, scene: &RenderScene) -> Result<String, String> {
        let text = self.engine.get_template(name).and_then(|template| template.render(Value::from(Serde(scene))));
        text.map(|text| text.trim().to_owned()).map_err(|error| described(&error))
    }
}

/// The language, with its formats and no templates.
fn engine() -> Environment<'static> {
    let mut engine = Environment::new();
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_fuel(Some(FUEL));
    engine.set_recursion_limit(50);
    engine.set_auto_escape_callback(|name| {
        AutoEscape::Custom(MessageFormat::of_name(name.trim_end_matches(SUBJECT_PART)).ending().into())
    });
    engine.set_formatter(|out: &mut Output, state: &mut State, value: &Value| {
        let text = if value.is_none() { String::new() } else { value.to_string() };
        let format = format_of(state);
        out.write_str(&if value.is_safe() { text } else { markup::escaped(&text, format) })?;
        Ok(())
    });
    engine.add_filter("markdown", |state: &State, text: String| {
        Value::from_safe_string(markup::markdown(&text, format_of(state)))
    });
    engine.add_filter("lines", |state: &State, text: String| {
        Value::from_safe_string(markup::lines(&text, format_of(state)))
    });
    engine
}

fn format_of(state: &State) -> MessageFormat {
    match state.auto_escape() {
        AutoEscape::Custom(ending) => {
            MessageFormat::ALL.into_iter().find(|format| format.ending() == ending).unwrap_or(MessageFormat::Plain)
        }
        _ => MessageFormat::Plain,
    }
}

/// Adds a template; of a `.txt` its subject and its body.
fn add(engine: &mut Environment<'static>, name: &str, text: &str) -> Result<(), String> {
    let fault = |error: minijinja::Error| described(&error);
    if MessageFormat::of_name(name) != MessageFormat::Plain {
        return engine.add_template_owned(name.to_owned(), text.to_owned()).map_err(fault);
    }
    let (first, body) = text.split_once('\n').unwrap_or((text, ""));
    let subject = first.strip_prefix(SUBJECT).ok_or(format!("line 1: must begin with `{SUBJECT} …`"))?;
    engine.add_template_owned(format!("{name}{SUBJECT_PART}"), subject.to_owned()).map_err(fault)?;
    // an empty first line, so that faults name the lines of the file
    engine.add_template_owned(name.to_owned(), format!("\n{body}")).map_err(fault)
}

fn described(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}
