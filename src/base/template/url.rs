//! A URL with templates in its path and query. Scheme, host and port are fixed when it is read; what is inserted is
//! percent-encoded, so that it can't leave its segment or its value, and never be a segment that climbs.

use crate::base::template::{Template, TemplateError, TemplateFault, TemplateNames, TextTemplates, Values, render};

/// A URL that was read.
#[derive(Debug, Clone)]
pub struct UrlTemplate {
    /// Scheme, host and port, as written.
    origin: String,
    path: Template,
    /// With its `?`.
    query: Template,
}

impl UrlTemplate {
    /// Reads an address with templates in it; a template may not stand in its host.
    pub fn read(text: &str, templates: &TextTemplates, names: TemplateNames) -> Result<UrlTemplate, TemplateFault> {
        let fault = |why: &str| TemplateFault(why.to_owned());
        let text = text.trim();
        let whole = "must be a whole address, such as https://api.example.org/orders/{{ event.data.id }}";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fault(whole))?;
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if [scheme, authority].iter().any(|part| part.contains(['{', '}', '%'])) {
            return Err(fault("scheme, host and port can't be inserted; write them out"));
        }
        if authority.contains('@') {
            return Err(fault("user and password can't stand in a URL"));
        }
        if rest.contains(['#', '\\']) {
            return Err(fault("a fragment or a backslash can't stand in a URL here"));
        }
        let at = query_at(rest);
        if rest[..at].split('/').any(climbs) {
            return Err(fault("a segment of the path can't be `.` or `..`"));
        }
        let path = templates.read(&rest[..at], names)?;
        let query = templates.read(&rest[at..], names)?;
        Ok(UrlTemplate { origin: format!("{scheme}://{authority}"), path, query })
    }

    /// See [`Template::steps`].
    pub fn steps(&self, values: &Values) -> u64 {
        self.path.steps(values) + self.query.steps(values)
    }

    /// The address without what is inserted, for checks when it is saved.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The URL with everything put in.
    pub fn url(&self, values: &Values) -> Result<String, TemplateError> {
        let part = |template: &Template, engine| match template.is_literal() {
            true => Ok(template.written().to_owned()),
            false => render(engine, template, values),
        };
        let path = part(&self.path, &self.path.engines.path)?;
        if path.split('/').any(climbs) {
            return Err(TemplateError::Failed("a segment of the URL's path would be `.` or `..`".into()));
        }
        let query = part(&self.query, &self.query.engines.query)?;
        Ok(format!("{}{path}{query}", self.origin))
    }
}

/// Where the query begins: the first `?` outside of an expression.
fn query_at(rest: &str) -> usize {
    let mut inside = false;
    for (index, _) in rest.char_indices() {
        match &rest[index..] {
            at if at.starts_with("{{") || at.starts_with("{%") => inside = true,
            at if at.starts_with("}}") || at.starts_with("%}") => inside = false,
            at if at.starts_with('?') && !inside => return index,
            _ => {}
        }
    }
    rest.len()
}

/// `.` and `..` in every spelling that a URL parser takes for them.
fn climbs(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<UrlTemplate, TemplateFault> {
        UrlTemplate::read(text, &TextTemplates::default(), TemplateNames { variables: &["v"], steps: &[] })
    }

    fn url(text: &str, v: &serde_json::Value) -> Result<String, TemplateError> {
        let mut values = Values::default();
        values.set("v", v);
        read(text).unwrap().url(&values)
    }

    #[test]
    fn inserted_value_stays_in_its_part_of_the_url() {
        let inserted = |v: &str| url("https://h.example:8443/a/{{ v }}/b?q={{ v }}&r=1", &json!(v)).unwrap();
        assert_eq!(inserted("x"), "https://h.example:8443/a/x/b?q=x&r=1");
        for hostile in
            ["../admin", "a/b", "x?y=1", "x#y", "@evil.example", "a\\b", "%2e%2e", "a&r=2", "é\r\n", "//evil"]
        {
            let parsed: ::url::Url = inserted(hostile).parse().unwrap();
            assert_eq!(parsed.host_str(), Some("h.example"), "{hostile}");
            assert_eq!(parsed.port(), Some(8443));
            assert_eq!(parsed.path_segments().unwrap().count(), 3, "{hostile}: {parsed}");
            assert!(parsed.path().starts_with("/a/") && parsed.path().ends_with("/b"), "{hostile}: {parsed}");
            let query: Vec<(String, String)> = parsed.query_pairs().into_owned().collect();
            assert_eq!(query, [("q".to_owned(), hostile.to_owned()), ("r".to_owned(), "1".to_owned())]);
        }
        assert_eq!(url("https://h.example/{{ v }}", &json!(7)).unwrap(), "https://h.example/7");
    }

    #[test]
    fn value_that_would_climb_or_vanish_is_an_error() {
        for v in [".", "..", ""] {
            assert!(url("https://h.example/a/{{ v }}/b", &json!(v)).is_err(), "{v:?}");
        }
        assert!(url("https://h.example/a/.{{ v }}", &json!(".")).is_err());
        assert_eq!(url("https://h.example/a?q={{ v }}", &json!("..")).unwrap(), "https://h.example/a?q=..");
    }

    #[test]
    fn scheme_host_and_port_are_written_out() {
        for refused in [
            "{{ v }}",
            "{{ v }}://h.example/",
            "https://{{ v }}/",
            "https://h.example:{{ v }}/",
            "https://{{ v }}.example/x",
            "https://h.example{{ v }}",
            "https://u:p@h.example/",
            "https://h.example/#{{ v }}",
            "/relative",
            "https://h.example\\{{ v }}",
            "https://%7b{{ v }}/",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
        assert_eq!(read("https://h.example?x={{ v }}").unwrap().origin(), "https://h.example");
    }
}
