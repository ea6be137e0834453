//! A JSON value whose texts are templates.

use serde_json::{Map, Value};

use crate::base::invalid::{ValidationErrors, escape};
use crate::base::template::{Template, TemplateError, TemplateNames, TextTemplates, Values, guard};

/// A value that was read. Keys are taken as they are.
#[derive(Debug, Clone)]
pub enum Tree {
    /// Without a template anywhere.
    Literal(Value),
    /// A text.
    Text(Template),
    /// A list.
    List(Vec<Tree>),
    /// An object, in the order in which it was written.
    Object(Vec<(String, Tree)>),
}

/// The number of texts in a value that insert something.
pub fn inserting_texts(value: &Value) -> usize {
    match value {
        Value::String(text) => usize::from(guard::inserts(text)),
        Value::Array(items) => items.iter().map(inserting_texts).sum(),
        Value::Object(fields) => fields.values().map(inserting_texts).sum(),
        _ => 0,
    }
}

impl Tree {
    /// Reads the value that stands at `pointer`; each text that is no template is a fault at its place.
    pub fn read(
        value: &Value,
        pointer: &str,
        templates: &TextTemplates,
        names: TemplateNames,
        faults: &mut ValidationErrors,
    ) -> Tree {
        let read = match value {
            Value::String(text) => match templates.read(text, names) {
                Ok(template) => Tree::Text(template),
                Err(fault) => {
                    faults.add(pointer, fault.to_string());
                    Tree::Literal(Value::Null)
                }
            },
            Value::Array(items) => {
                let each = |(index, item)| Tree::read(item, &format!("{pointer}/{index}"), templates, names, faults);
                Tree::List(items.iter().enumerate().map(each).collect())
            }
            Value::Object(fields) => {
                let mut read = Vec::with_capacity(fields.len());
                for (key, field) in fields {
                    let place = format!("{pointer}/{}", escape(key));
                    read.push((key.clone(), Tree::read(field, &place, templates, names, faults)));
                }
                Tree::Object(read)
            }
            plain => Tree::Literal(plain.clone()),
        };
        if read.is_literal() { Tree::Literal(value.clone()) } else { read }
    }

    /// See [`Template::steps`].
    pub fn steps(&self, values: &Values) -> u64 {
        match self {
            Tree::Literal(_) => 0,
            Tree::Text(template) => template.steps(values),
            Tree::List(items) => items.iter().map(|item| item.steps(values)).sum(),
            Tree::Object(fields) => fields.iter().map(|(_, field)| field.steps(values)).sum(),
        }
    }

    /// The value as it was written, if it always gives the same.
    pub fn literal(&self) -> Option<&Value> {
        match self {
            Tree::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// The value with everything put in.
    pub fn value(&self, values: &Values) -> Result<Value, TemplateError> {
        Ok(match self {
            Tree::Literal(value) => value.clone(),
            Tree::Text(template) => template.value(values)?,
            Tree::List(items) => items.iter().map(|item| item.value(values)).collect::<Result<_, _>>()?,
            Tree::Object(fields) => {
                let each = |(key, field): &(String, Tree)| Ok((key.clone(), field.value(values)?));
                Value::Object(fields.iter().map(each).collect::<Result<Map<_, _>, TemplateError>>()?)
            }
        })
    }

    /// The value with everything put in; of an object those fields are left out that name something which is not there.
    pub fn present(&self, values: &Values) -> Result<Value, TemplateError> {
        let Tree::Object(fields) = self else { return self.value(values) };
        let mut present = Map::new();
        for (key, field) in fields {
            match field.value(values) {
                Ok(value) => drop(present.insert(key.clone(), value)),
                Err(TemplateError::Missing(_)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(Value::Object(present))
    }

    fn is_literal(&self) -> bool {
        match self {
            Tree::Literal(_) => true,
            Tree::Text(template) => template.is_literal(),
            Tree::List(items) => items.iter().all(Tree::is_literal),
            Tree::Object(fields) => fields.iter().all(|(_, field)| field.is_literal()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value, faults: &mut ValidationErrors) -> Tree {
        Tree::read(
            value,
            "/body",
            &TextTemplates::default(),
            TemplateNames { variables: &["event"], steps: &[] },
            faults,
        )
    }

    #[test]
    fn texts_anywhere_are_templates_and_keep_types() {
        let mut values = Values::default();
        values.set("event", &json!({ "id": 7, "tags": ["a"] }));
        let written =
            json!({ "id": "{{ event.id }}", "list": ["n{{ event.id }}", 1, null], "tags": "{{ event.tags }}" });
        let tree = read(&written, &mut ValidationErrors::new());
        assert_eq!(tree.value(&values).unwrap(), json!({ "id": 7, "list": ["n7", 1, null], "tags": ["a"] }));
        assert_eq!(tree.literal(), None);
        let plain = json!({ "a": ["b", 1] });
        assert_eq!(read(&plain, &mut ValidationErrors::new()).literal(), Some(&plain));
    }

    #[test]
    fn fields_that_name_something_which_is_not_there_are_left_out_where_that_is_wanted() {
        let mut values = Values::default();
        values.set("event", &json!({ "id": 7 }));
        let written =
            json!({ "id": "{{ event.id }}", "zone": "{{ event.zone }}", "list": ["{{ event.zone }}"], "n": 1 });
        let tree = read(&written, &mut ValidationErrors::new());
        assert!(matches!(tree.value(&values), Err(TemplateError::Missing(_))));
        assert_eq!(tree.present(&values).unwrap(), json!({ "id": 7, "n": 1 }));
    }

    #[test]
    fn each_fault_has_its_place() {
        let mut faults = ValidationErrors::new();
        read(&json!({ "a/b": ["{{ x }}"], "c": "{{" }), &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/body/a~1b/0", "/body/c"]);
    }
}
