//! Addresses of the API, for its callers in this process.

use url::form_urlencoded::{Serializer, byte_serialize};

/// An address of the API. Ids and names of clients stay in their places, whatever is in them.
pub(in crate::http) fn address(path: &[&str], query: &[(&str, String)]) -> String {
    let mut address: String = path.iter().flat_map(|segment| ["/".to_owned(), encoded(segment)]).collect();
    if !query.is_empty() {
        address.push('?');
        address.push_str(&Serializer::new(String::new()).extend_pairs(query).finish());
    }
    address
}

/// A segment of a path. Dots are encoded, so that no segment is one that leads elsewhere.
fn encoded(segment: &str) -> String {
    let form: String = byte_serialize(segment.as_bytes()).collect();
    form.replace('+', "%20").replace('.', "%2E")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_stay_in_their_places() {
        assert_eq!(address(&["v1", "tasks"], &[]), "/v1/tasks");
        assert_eq!(address(&["v1", "tasks", "a/../b", "run"], &[]), "/v1/tasks/a%2F%2E%2E%2Fb/run");
        assert_eq!(address(&["v1", "facts", ".."], &[]), "/v1/facts/%2E%2E");
        assert_eq!(address(&["v1", "facts", "a?b#c%2F d+é"], &[]), "/v1/facts/a%3Fb%23c%252F%20d%2B%C3%A9");
        assert_eq!(address(&["v1", "facts", ""], &[]), "/v1/facts/");
        let query = [("q", "a&limit=9 é".to_owned()), ("limit", "20".to_owned())];
        assert_eq!(address(&["v1", "facts"], &query), "/v1/facts?q=a%26limit%3D9+%C3%A9&limit=20");
    }

    #[test]
    fn address_is_one_that_means_what_was_said() {
        let segment = "x/../y?z#%2e é\u{0}\n";
        let uri: axum::http::Uri = address(&["v1", segment], &[("k", segment.to_owned())]).parse().unwrap();
        assert_eq!(uri.path().split('/').count(), 3);
        let told: Vec<_> = url::form_urlencoded::parse(uri.query().unwrap().as_bytes()).into_owned().collect();
        assert_eq!(told, [("k".to_owned(), segment.to_owned())]);
    }
}
