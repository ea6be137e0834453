//! The query of a request, read name by name; what nobody asked for, or can't be read, is named in one answer.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean};
use crate::http::error::ApiError;

/// The parameters of a request and what was wrong with them so far.
#[derive(Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    faults: ValidationErrors,
    /// Parameters that are there without a value.
    empty: ValidationErrors,
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query, Self::Rejection> {
        Ok(Query::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Query {
    /// Reads `a=b&c=d`. A parameter without a value is a fault: it is no filter, and would be taken for one.
    pub fn parse(query: &str) -> Query {
        let pairs = url::form_urlencoded::parse(query.as_bytes()).into_owned();
        Query { pairs: pairs.collect(), ..Query::default() }
    }

    /// Reads the fields of a form, where one that was left empty counts as none.
    pub fn of_form(form: &str) -> Query {
        let mut query = Query::parse(form);
        query.pairs.retain(|(_, value)| !value.is_empty());
        query
    }

    /// The text of a parameter.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let mut values = self.pairs.iter().filter(|(n, _)| n == name).map(|(_, value)| value.clone());
        let value = values.next();
        if values.next().is_some() {
            self.faults.add(format!("/{name}"), "must be given once");
        }
        if value.as_deref() == Some("") {
            self.empty.add(format!("/{name}"), "must not be empty; leave the parameter out where it says nothing");
            return None;
        }
        value
    }

    /// A parameter that `read` understands, or a fault that says what would be right.
    pub fn read<T>(&mut self, name: &'static str, read: impl Fn(&str) -> Option<T>, right: &str) -> Option<T> {
        let text = self.text(name)?;
        let value = read(&text);
        if value.is_none() {
            self.faults.add(format!("/{name}"), format!("`{text}` must be {right}"));
        }
        value
    }

    /// An id.
    pub fn id(&mut self, name: &'static str) -> Option<Uuid> {
        self.read(name, |text| Uuid::try_parse(text).ok(), "a UUID")
    }

    /// An instant, RFC 3339.
    pub fn instant(&mut self, name: &'static str) -> Option<DateTime<Utc>> {
        let read = |text: &str| DateTime::parse_from_rfc3339(text).ok().map(|at| at.to_utc());
        self.read(name, read, "an RFC 3339 time such as 2026-12-24T15:00:00Z (a `+` is written %2B)")
    }

    /// One of a closed set of words.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(name)?;
        let value = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if value.is_none() {
            let names = words.iter().map(|(word, _)| *word);
            let list = names.clone().collect::<Vec<_>>().join(", ");
            self.faults
                .add(format!("/{name}"), format!("`{text}` must be one of {list}{}", did_you_mean(&text, names)));
        }
        value
    }

    /// Adds a fault that was found in a parameter's value.
    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        self.faults.add(format!("/{name}"), message);
    }

    /// Ends the reading: what was not asked for is a fault, too.
    pub fn done(mut self) -> Result<(), ApiError> {
        let mut unknown: Vec<&str> = self.pairs.iter().map(|(name, _)| name.as_str()).collect();
        unknown.retain(|name| !self.known.contains(name));
        unknown.dedup();
        unknown.truncate(NAMED);
        for name in unknown {
            let near = did_you_mean(name, self.known.iter().copied());
            let known = if self.known.is_empty() { "none is known".into() } else { self.known.join(", ") };
            let pointer = format!("/{}", crate::base::invalid::escape(name));
            self.faults.add(pointer, format!("unknown parameter (known here: {known}){near}"));
        }
        self.faults.into_result(()).map_err(ApiError::Query)?;
        self.empty.into_result(()).map_err(ApiError::Invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(query: Query) -> Vec<(String, String)> {
        match query.done() {
            Err(ApiError::Query(faults)) => faults.0.into_iter().map(|f| (f.pointer, f.message)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn known_parameters_are_read_and_none_is_left() {
        let mut query = Query::parse("state=b&since=2026-01-01T00%3A00%3A00%2B02%3A00");
        assert_eq!(query.word("state", &[("a", 1), ("b", 2)]), Some(2));
        assert_eq!(query.instant("since").unwrap().to_rfc3339(), "2025-12-31T22:00:00+00:00");
        assert_eq!(query.text("q"), None);
        query.done().unwrap();
    }

    #[test]
    fn parameter_without_a_value_is_a_fault_and_an_empty_field_of_a_form_is_none() {
        for query in ["q=", "q"] {
            let mut query = Query::parse(query);
            assert_eq!(query.text("q"), None);
            let Err(ApiError::Invalid(faults)) = query.done() else { panic!("it was taken") };
            assert_eq!(faults.0[0].pointer, "/q");
        }
        let mut form = Query::of_form("q=&r=1");
        assert_eq!((form.text("q"), form.text("r")), (None, Some("1".into())));
        form.done().unwrap();
    }

    #[test]
    fn every_fault_is_named_in_one_answer() {
        let mut query = Query::parse("state=qeued&task_id=7&limt=5&task_id=8");
        assert_eq!(query.word("state", &[("queued", 1), ("running", 2)]), None);
        assert_eq!(query.id("task_id"), None);
        assert_eq!(query.text("limit"), None);
        assert_eq!(
            faults(query),
            [
                ("/state".into(), "`qeued` must be one of queued, running; did you mean `queued`?".into()),
                ("/task_id".into(), "must be given once".into()),
                ("/task_id".into(), "`7` must be a UUID".into()),
                (
                    "/limt".into(),
                    "unknown parameter (known here: state, task_id, limit); did you mean `limit`?".to_owned()
                ),
            ]
        );
    }
}
