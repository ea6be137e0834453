//! Templates: texts with `{{ expression }}` in them, for steps of pipelines and for requests.
//!
//! The language is a small part of Jinja: names, filters, `if` and `for`. It has no macros, includes, assignments and
//! no functions, a name that is missing is an error, and work and output are bounded: see `guard`. In a URL what is
//! inserted is percent-encoded and can't leave its place. Nothing is kept between renderings.

mod guard;
pub mod html;
mod insert;
mod limits;
mod meter;
mod tree;
pub mod untrusted;
mod url;
mod work;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use minijinja::{Environment, ErrorKind};
use serde_json::Value;

use crate::base::invalid::did_you_mean;
use crate::base::template::insert::Insert;
use crate::base::template::work::{TemplateWork, ValueSize};

pub use limits::{OUTPUT_BYTES, TEMPLATE_BYTES};
pub use meter::sharing_steps;
pub use tree::{Tree, inserting_texts};
pub use url::UrlTemplate;

/// The name under which the values of earlier steps are found.
const STEPS: &str = "steps";

/// Reads templates: holds what they share. Cheap to clone.
#[derive(Clone)]
pub struct TextTemplates(Arc<Engines>);

struct Engines {
    text: Environment<'static>,
    data: Environment<'static>,
    path: Environment<'static>,
    query: Environment<'static>,
}

/// Names that a template or an expression may use.
#[derive(Debug, Clone, Copy)]
pub struct TemplateNames<'a> {
    /// Names of the variables.
    pub variables: &'a [&'a str],
    /// The members that `steps` has.
    pub steps: &'a [String],
}

/// Why a text is no template that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateFault(pub String);

/// Why a template gives nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Something that it names is not there.
    #[error("something that the template names is not there{0}")]
    Missing(String),
    /// Types that do not go together, too much work, too long a text.
    #[error("{0}")]
    Failed(String),
}

/// Values by name, converted once for any number of templates.
#[derive(Clone, Default)]
pub struct Values {
    values: BTreeMap<String, minijinja::Value>,
    sizes: BTreeMap<String, ValueSize>,
}

/// A template that was read. Cheap to clone.
#[derive(Clone)]
pub struct Template {
    text: Arc<str>,
    form: TemplateForm,
    /// The variables that it uses.
    variables: Arc<HashSet<String>>,
    work: TemplateWork,
    engines: Arc<Engines>,
}

#[derive(Clone)]
enum TemplateForm {
    /// Nothing is inserted.
    Literal,
    /// One `{{ expression }}` and nothing around it: the value keeps its type.
    Lone(Arc<str>),
    Mixed,
}

impl Default for TextTemplates {
    fn default() -> TextTemplates {
        let engine = insert::engine;
        TextTemplates(Arc::new(Engines {
            text: engine(Insert::Text),
            data: engine(Insert::Data),
            path: engine(Insert::Path),
            query: engine(Insert::Query),
        }))
    }
}

impl TextTemplates {
    /// Reads a template that may use these names.
    pub fn read(&self, text: &str, names: TemplateNames) -> Result<Template, TemplateFault> {
        guard::before_parsing(text)?;
        let (form, variables) = match guard::inserts(text) {
            false => (TemplateForm::Literal, HashSet::new()),
            true => self.judge(text, names)?,
        };
        let (variables, engines) = (Arc::new(variables), Arc::clone(&self.0));
        Ok(Template { text: text.into(), form, variables, work: TemplateWork::of(text), engines })
    }

    /// The form of a template, and the variables that it uses.
    fn judge(&self, text: &str, names: TemplateNames) -> Result<(TemplateForm, HashSet<String>), TemplateFault> {
        let read = self.0.text.template_from_str(text).map_err(|error| fault(&error))?;
        names.judge(read.undeclared_variables(true))?;
        let variables = read.undeclared_variables(false);
        let lone = text.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        let form = match lone.filter(|inner| self.0.text.compile_expression_owned((*inner).to_owned()).is_ok()) {
            Some(inner) => TemplateForm::Lone(inner.into()),
            None => TemplateForm::Mixed,
        };
        Ok((form, variables))
    }
}

impl TemplateNames<'_> {
    /// Whether all that is named is there; what is used of `steps` as well.
    fn judge(&self, used: HashSet<String>) -> Result<(), TemplateFault> {
        let mut used: Vec<String> = used.into_iter().collect();
        used.sort();
        for path in used {
            let mut parts = path.split('.');
            let name = parts.next().unwrap_or_default();
            if !self.variables.contains(&name) {
                let hint = did_you_mean(name, self.variables.iter().copied());
                let known = self.variables.join("`, `");
                return Err(TemplateFault(format!("unknown name `{name}`{hint}; there are `{known}`")));
            }
            if let (STEPS, Some(step)) = (name, parts.next())
                && let Some(why) = self.no_step(step)
            {
                return Err(TemplateFault(why));
            }
        }
        Ok(())
    }

    /// The fault of `steps.<step>`, if there is one.
    pub fn no_step(&self, step: &str) -> Option<String> {
        if self.steps.iter().any(|known| known == step) {
            return None;
        }
        let hint = did_you_mean(step, self.steps.iter().map(String::as_str));
        Some(format!("there is no step `{step}` before this one{hint}"))
    }
}

impl Values {
    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &Value) {
        self.values.insert(name.to_owned(), insert::from_json(value));
        self.sizes.insert(name.to_owned(), ValueSize::of(value));
    }

    fn context(&self) -> minijinja::Value {
        minijinja::Value::from_pairs(self.values.iter().map(|(name, value)| (name.clone(), value.clone())))
    }

    /// The largest of the values.
    fn size(&self) -> ValueSize {
        self.sizes.values().fold(ValueSize::default(), |most, size| most.max(*size))
    }
}

impl Template {
    /// Whether it always gives the same.
    pub fn is_literal(&self) -> bool {
        matches!(self.form, TemplateForm::Literal)
    }

    /// The steps that it takes at most, of about a nanosecond: what is dear goes to a thread of its own.
    pub fn steps(&self, values: &Values) -> u64 {
        if self.is_literal() { 0 } else { self.work.steps(values.size()) }
    }

    /// As it was written.
    pub fn written(&self) -> &str {
        &self.text
    }

    /// The text that it gives; values that are no text stand there as JSON.
    pub fn text(&self, values: &Values) -> Result<String, TemplateError> {
        match &self.form {
            TemplateForm::Literal => Ok(self.text.to_string()),
            TemplateForm::Lone(_) | TemplateForm::Mixed => render(&self.engines.text, self, values),
        }
    }

    /// The text for a model: texts, lists and objects that it inserts are labelled as data, see
    /// [`crate::base::template::untrusted`]. A template that uses no other variables than `own`, which nobody outside
    /// has written, gives its text as it is.
    pub fn prompt(&self, values: &Values, own: &[&str]) -> Result<String, TemplateError> {
        match self.variables.iter().all(|name| own.contains(&name.as_str())) {
            true => self.text(values),
            false => render(&self.engines.data, self, values),
        }
    }

    /// Refuses to look at long texts too often.
    fn afford(&self, values: &Values) -> Result<(), TemplateError> {
        match self.work.is_affordable(values.size()) {
            true => Ok(()),
            false => Err(too_much_work()),
        }
    }

    /// The rendered value: one that stands alone keeps its type.
    pub fn value(&self, values: &Values) -> Result<Value, TemplateError> {
        let TemplateForm::Lone(inner) = &self.form else { return self.text(values).map(Value::String) };
        self.afford(values)?;
        let expression = self.engines.text.compile_expression(inner).map_err(|error| failure(&error))?;
        // looks at data count, so all of them belong to the rendering
        let value = meter::within(|| {
            let value = expression.eval(values.context()).map_err(|error| failure(&error))?;
            if value.is_undefined() {
                return Err(TemplateError::Missing(format!(": `{}`", inner.trim())));
            }
            serde_json::to_value(&value).map_err(|_| TemplateError::Failed("gives no JSON".into()))
        })?;
        let given = guard::affordable(&value)?;
        meter::charge(self.work.taken(values.size(), None, given))?;
        Ok(value)
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

fn render(engine: &Environment<'static>, template: &Template, values: &Values) -> Result<String, TemplateError> {
    template.afford(values)?;
    let (work, size) = (template.work, values.size());
    let mut fuelled = engine.clone();
    fuelled.set_fuel(Some(work.fuel(size)));
    let text = &template.text;
    let template = fuelled.template_from_str(text).map_err(|error| failure(&error))?;
    let mut output = guard::BoundedOutput::default();
    let rendered = meter::within(|| match template.render_captured_to(values.context(), &mut output) {
        Ok(rendered) => Ok(rendered.state().fuel_levels().map(|(consumed, _)| consumed)),
        Err(_) if output.is_full() => Err(guard::too_long()),
        Err(error) => Err(failure(&error)),
    });
    // one that has failed has taken its part, too: others may go on
    let consumed = rendered.as_ref().ok().copied().flatten();
    meter::charge(work.taken(size, consumed, output.written()))?;
    rendered?;
    output.text()
}

/// The fault of a text that can't be read, for the writer of a template.
fn fault(error: &minijinja::Error) -> TemplateFault {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) if line > 1 => TemplateFault(format!("{what} (in line {line})")),
        _ => TemplateFault(what),
    }
}

fn too_much_work() -> TemplateError {
    TemplateError::Failed("the template takes too much work".into())
}

/// Values are never quoted: they may be long, and not for everyone's eyes.
fn failure(error: &minijinja::Error) -> TemplateError {
    match error.kind() {
        ErrorKind::UndefinedError => TemplateError::Missing(String::new()),
        ErrorKind::OutOfFuel => too_much_work(),
        ErrorKind::WriteFailure => guard::too_long(),
        kind => TemplateError::Failed(format!("the template failed: {kind}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMES: [&str; 3] = ["event", "steps", "input"];

    fn read(text: &str) -> Result<Template, TemplateFault> {
        let steps = ["order".to_owned()];
        TextTemplates::default().read(text, TemplateNames { variables: &NAMES, steps: &steps })
    }

    fn values() -> Values {
        let mut values = Values::default();
        values.set("event", &json!({ "id": 7, "name": "Ann", "tags": ["a", "b"], "none": null, "price": 2.6 }));
        values.set("steps", &json!({ "order": { "body": { "id": "x/..", "lines": [{ "n": 1 }, { "n": 2 }] } } }));
        values
    }

    fn text(template: &str) -> String {
        read(template).unwrap().text(&values()).unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn prompt_labels_what_it_inserts_unless_nobody_outside_has_written_it() {
        let prompt = |template: &str, own: &[&str]| read(template).unwrap().prompt(&values(), own).unwrap();
        let name = crate::base::template::untrusted::fenced("value", "Ann");
        let tags = crate::base::template::untrusted::fenced("value", r#"["a","b"]"#);
        assert_eq!(prompt("Hello {{ event.name }}!", &["input"]), format!("Hello {name}!"));
        assert_eq!(prompt("{{ event.name }}", &[]), name);
        assert_eq!(prompt("{{ event.tags }} {{ event.id }} {{ event.price }}", &[]), format!("{tags} 7 2.6"));
        assert_eq!(prompt("{{ event.none }} {{ event.id > 3 }}", &[]), "null true");
        let each = prompt("{% for tag in event.tags %}{{ tag }}{% endfor %}", &["input", "steps"]);
        assert_eq!(each.matches("from=\"value\"").count(), 2, "{each}");
        assert_eq!(prompt("Hello {{ event.name }}!", &["event"]), "Hello Ann!");
        assert_eq!(prompt("Nothing.", &[]), "Nothing.");
    }

    #[test]
    fn names_filters_conditions_and_loops_are_what_there_is() {
        for (template, expected) in [
            ("no template", "no template"),
            ("Hello {{ event.name }}!", "Hello Ann!"),
            ("{{ event.name | upper }} {{ event.tags | join('+') }} {{ event.tags | length }}", "ANN a+b 2"),
            ("{{ event.missing | default('none') }}", "none"),
            ("{{ event.tags }} {{ event.none }} {{ event.price }}", "[\"a\",\"b\"] null 2.6"),
            ("{% if event.id > 3 %}large{% else %}small{% endif %}", "large"),
            ("{% for line in steps.order.body.lines %}{{ loop.index }}:{{ line.n }} {% endfor %}", "1:1 2:2 "),
            ("{{ event.name | replace('n', '-') }}", "A--"),
            ("{{ event.price | round }}", "3.0"),
            ("{{ event | tojson }}", r#"{"id":7,"name":"Ann","none":null,"price":2.6,"tags":["a","b"]}"#),
        ] {
            assert_eq!(text(template), expected, "{template}");
        }
    }

    #[test]
    fn value_that_stands_alone_keeps_its_type() {
        let value = |template: &str| read(template).unwrap().value(&values()).unwrap();
        assert_eq!(value("{{ event.id }}"), json!(7));
        assert_eq!(value(" {{ event.tags }} "), json!(["a", "b"]));
        assert_eq!(value("{{ event.none }}"), json!(null));
        assert_eq!(value("{{ event.id }}{{ event.id }}"), json!("77"));
        assert_eq!(value("x {{ event.id }}"), json!("x 7"));
        assert_eq!(value("7"), json!("7"));
    }

    #[test]
    fn missing_value_is_an_error_and_never_empty() {
        let failed = |template: &str| read(template).unwrap().value(&values()).unwrap_err();
        assert_eq!(failed("{{ event.missing }}"), TemplateError::Missing(": `event.missing`".into()));
        assert!(matches!(failed("a {{ event.missing }}"), TemplateError::Missing(_)));
        assert!(matches!(failed("{{ event.missing.more }}"), TemplateError::Missing(_)));
        assert!(
            matches!(failed("{{ event.name | int }}"), TemplateError::Failed(_)),
            "{}",
            failed("{{ event.name | int }}")
        );
    }

    #[test]
    fn unknown_names_later_steps_and_broken_texts_are_refused() {
        let refused = |template: &str| read(template).unwrap_err().0;
        assert_eq!(
            refused("{{ evnt.id }}"),
            "unknown name `evnt`; did you mean `event`?; there are `event`, `steps`, `input`"
        );
        assert_eq!(
            refused("{{ steps.ordre.body }}"),
            "there is no step `ordre` before this one; did you mean `order`?"
        );
        assert_eq!(refused("{% for a in steps.later %}{% endfor %}"), "there is no step `later` before this one");
        assert!(refused("{{ event.id ").contains("unexpected end"), "{}", refused("{{ event.id "));
        assert!(refused("{{ event.id | shout }}").contains("shout"), "{}", refused("{{ event.id | shout }}"));
        assert!(read("{% for step in steps %}{% endfor %}").is_ok());
    }
}
