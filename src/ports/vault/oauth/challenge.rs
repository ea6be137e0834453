//! The challenge with which a protected resource asks for a token (RFC 6750, section 3; RFC 9728, section 5.1).

use http::{HeaderMap, header};

/// Longest challenge that is read, in bytes. A longer one says nothing.
const CHALLENGE_BYTES: usize = 8 * 1024;
/// Longest scope, in bytes.
const SCOPE_NAME_BYTES: usize = 200;

/// The parameters of a challenge of the scheme `Bearer`; those of other schemes are not looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BearerChallenge {
    /// Where the metadata of the resource is.
    pub resource_metadata: Option<String>,
    /// The scopes that a request needs, with blanks between them.
    pub scope: Option<String>,
    /// Why a token was refused, such as `insufficient_scope`.
    pub error: Option<String>,
}

impl BearerChallenge {
    /// The challenge in the headers of an answer; empty where there is none.
    pub fn of(headers: &HeaderMap) -> BearerChallenge {
        let lines = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|line| line.to_str().ok());
        BearerChallenge::parse(&lines.collect::<Vec<_>>().join(", "))
    }

    /// The challenge in the value of `WWW-Authenticate`; empty where there is none.
    pub fn parse(text: &str) -> BearerChallenge {
        let mut challenge = BearerChallenge::default();
        if text.len() > CHALLENGE_BYTES {
            return challenge;
        }
        let (mut rest, mut is_bearer) = (text, false);
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            let end = rest.find([' ', '\t', ',', '=', '"']).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            match (word, behind.trim_start_matches([' ', '\t']).strip_prefix('=')) {
                ("", _) if behind.is_empty() => return challenge,
                // a sign in a place where no word begins
                ("", _) => rest = &behind[1..],
                (name, Some(value)) => {
                    let (value, behind) = value_of(value.trim_start_matches([' ', '\t']));
                    if is_bearer {
                        challenge.take(name, value);
                    }
                    rest = behind;
                }
                (scheme, None) => {
                    is_bearer = scheme.eq_ignore_ascii_case("bearer");
                    rest = behind;
                }
            }
        }
    }

    /// The scopes that it names; a word that can't be one is left out.
    pub fn scopes(&self) -> Vec<String> {
        let words = self.scope.iter().flat_map(|scope| scope.split(' '));
        words.filter(|word| is_scope(word)).map(str::to_owned).collect()
    }

    /// Takes a parameter; of two with one name the first one counts.
    fn take(&mut self, name: &str, value: String) {
        let place = match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => &mut self.resource_metadata,
            "scope" => &mut self.scope,
            "error" => &mut self.error,
            _ => return,
        };
        place.get_or_insert(value);
    }
}

/// The value at the beginning of a text, quoted or not, and the rest behind it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, sign) in quoted.char_indices() {
        match sign {
            _ if is_escaped => {
                value.push(sign);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            _ => value.push(sign),
        }
    }
    (value, "")
}

/// Whether this can be a scope (RFC 6749, appendix A.4): printable ASCII without blank, quote and backslash.
pub fn is_scope(text: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
    !text.is_empty() && text.len() <= SCOPE_NAME_BYTES && text.chars().all(is_fine)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn challenge(metadata: Option<&str>, scope: Option<&str>, error: Option<&str>) -> BearerChallenge {
        BearerChallenge {
            resource_metadata: metadata.map(str::to_owned),
            scope: scope.map(str::to_owned),
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn challenge_is_read_whatever_stands_around_it() {
        let address = "https://mcp.example.org/.well-known/oauth-protected-resource";
        let (place, metadata) = (Some(address), format!("resource_metadata=\"{address}\""));
        for (text, expected) in [
            (format!("Bearer {metadata}"), challenge(place, None, None)),
            (format!("bearer realm=\"a, b\", {metadata} ,scope = \"a b\""), challenge(place, Some("a b"), None)),
            (format!("Basic realm=\"x\", Bearer {metadata}"), challenge(place, None, None)),
            (format!("Bearer {metadata}, Basic realm=\"x\", scope=\"other\""), challenge(place, None, None)),
            ("Negotiate abc==, Bearer error=invalid_token".into(), challenge(None, None, Some("invalid_token"))),
            (r#"Bearer scope="a\"b", scope="c""#.into(), challenge(None, Some("a\"b"), None)),
            ("Basic scope=\"a\"".into(), challenge(None, None, None)),
            ("Bearer".into(), challenge(None, None, None)),
            ("Bearer scope=\"never ends".into(), challenge(None, Some("never ends"), None)),
            ("= \" , ==, \"".into(), challenge(None, None, None)),
            (String::new(), challenge(None, None, None)),
        ] {
            assert_eq!(BearerChallenge::parse(&text), expected, "{text}");
        }
    }

    #[test]
    fn challenge_is_found_among_several_headers_and_a_long_one_says_nothing() {
        let mut headers = HeaderMap::new();
        for line in ["Basic realm=\"x\"", "Bearer scope=\"a\""] {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(line));
        }
        assert_eq!(BearerChallenge::of(&headers).scope.as_deref(), Some("a"));
        let of_length = |length: usize| format!("{:length$}", "Bearer scope=a");
        assert_eq!(BearerChallenge::parse(&of_length(CHALLENGE_BYTES)).scope.as_deref(), Some("a"));
        assert_eq!(BearerChallenge::parse(&of_length(CHALLENGE_BYTES + 1)), BearerChallenge::default());
    }

    #[test]
    fn words_that_can_be_scopes_are_taken_and_no_others() {
        let scope = format!("notes:read  näh https://a.example/b {}", "x".repeat(SCOPE_NAME_BYTES + 1));
        assert_eq!(challenge(None, Some(&scope), None).scopes(), ["notes:read", "https://a.example/b"]);
        assert!(is_scope(&"x".repeat(SCOPE_NAME_BYTES)));
        assert!(BearerChallenge::default().scopes().is_empty());
    }
}
