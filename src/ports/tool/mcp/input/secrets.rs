//! Forms that ask for a secret: such a one is put to nobody, since what is typed there is kept like any answer.
//!
//! It is found by its words. A field says by its name, its title and its description what belongs into it, and the
//! message says it for all fields. A name tells it in one word; among the words of a message only those count that
//! mean nothing else.

use serde_json::Value;

use crate::ports::tool::mcp::input::schema::is_free_text;

/// Words that mean a secret wherever they stand, also at the end of a longer word.
const PLAIN: [&str; 9] = [
    "password",
    "passwd",
    "passcode",
    "passphrase",
    "passwort",
    "kennwort",
    "geheimzahl",
    "kartennummer",
    "zugangsschlüssel",
];

/// Phrases that mean a secret wherever they stand. Each is words in small letters, with a blank between.
const PHRASES: [&str; 44] = [
    "pwd",
    "otp",
    "cvv",
    "cvc",
    "apikey",
    "api key",
    "access key",
    "accesskey",
    "private key",
    "secret key",
    "card number",
    "credit card",
    "seed phrase",
    "one time code",
    "verification code",
    "security code",
    "login code",
    "recovery code",
    "recovery phrase",
    "totp",
    "ssh key",
    "signing key",
    "pin code",
    "pin number",
    "access token",
    "accesstoken",
    "api token",
    "auth token",
    "bearer token",
    "refresh token",
    "session token",
    "security token",
    "client secret",
    "your token",
    "your secret",
    "your pin",
    "your tan",
    "deine pin",
    "ihre pin",
    "deine tan",
    "ihre tan",
    "dein token",
    "ihr token",
    "zugangs schlüssel",
];

/// Words that mean a secret in the name, the title and the description of a text.
const OF_FIELDS: [&str; 3] = ["secret", "token", "geheimnis"];

/// Words that mean a secret in a name or a title; in a sentence they do where they are in capitals.
const SHORT: [&str; 2] = ["pin", "tan"];

/// The word of a form by which it asks for a secret; `None`: it asks for none. Looks at fields into which a person
/// writes what they like, and at numbers, of which there are secret ones.
pub fn asked_secret(message: &str, parameters: &Value) -> Option<String> {
    let properties = parameters["properties"].as_object()?;
    let mut takes_secret = false;
    for (name, field) in properties {
        let is_text = is_free_text(field);
        let is_number = field["type"] == "integer" || field["type"] == "number";
        if !is_text && !is_number {
            continue;
        }
        takes_secret = true;
        let told = |of: &str| Words::of(field[of].as_str().unwrap_or_default());
        let named = [Words::of(name), told("title")];
        let found = named.iter().find_map(|words| words.secret(is_text, is_text));
        if let Some(found) = found.or_else(|| told("description").secret(is_text, false)) {
            return Some(found);
        }
    }
    Words::of(message).secret(false, false).filter(|_| takes_secret)
}

/// The words of a text, as they are written.
struct Words(Vec<String>);

impl Words {
    /// Words end at blanks and signs, at digits, and where small letters turn into capitals.
    fn of(text: &str) -> Words {
        let letters: Vec<char> = text.chars().collect();
        let mut words = vec![String::new()];
        for (at, letter) in letters.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| letters[before]);
            let begins = letter.is_uppercase()
                && (before.is_some_and(char::is_lowercase)
                    || before.is_some_and(char::is_uppercase)
                        && letters.get(at + 1).is_some_and(|next| next.is_lowercase()));
            if begins || !letter.is_alphabetic() {
                words.push(String::new());
            }
            if letter.is_alphabetic()
                && let Some(word) = words.last_mut()
            {
                word.push(*letter);
            }
        }
        words.retain(|word| !word.is_empty());
        Words(words)
    }

    /// The first word, or phrase, that means a secret.
    fn secret(&self, of_field: bool, is_name: bool) -> Option<String> {
        let small: Vec<String> = self.0.iter().map(|word| word.to_lowercase()).collect();
        let line = format!(" {} ", small.join(" "));
        let phrase = PHRASES.into_iter().find(|phrase| line.contains(&format!(" {phrase} ")));
        let word = || {
            self.0.iter().zip(&small).find(|(written, small)| {
                let is_short = SHORT.contains(&small.as_str()) && (is_name || !written.chars().any(char::is_lowercase));
                let is_of_field = of_field && OF_FIELDS.contains(&small.as_str());
                let bare = small.strip_suffix('s').unwrap_or(small);
                is_short || is_of_field || PLAIN.iter().any(|plain| bare.ends_with(plain))
            })
        };
        phrase.map(str::to_owned).or_else(|| word().map(|(_, small)| small.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The secret that a form with one text asks for.
    fn of_text(message: &str, name: &str, told: Value) -> Option<String> {
        let mut field = json!({ "type": "string" });
        field.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
        asked_secret(message, &json!({ "properties": { name: field } }))
    }

    #[test]
    fn text_that_asks_for_a_secret_is_found_by_the_words_about_it() {
        for (message, name, told, found) in [
            ("Log in.", "password", json!({}), "password"),
            ("Log in.", "userPassword", json!({}), "password"),
            ("Log in.", "db_passwords", json!({}), "passwords"),
            ("Log in.", "adminpassword", json!({}), "adminpassword"),
            ("Log in.", "passwd", json!({}), "passwd"),
            ("Log in.", "PWD", json!({}), "pwd"),
            ("Log in.", "apiKey", json!({}), "api key"),
            ("Log in.", "APIKey", json!({}), "api key"),
            ("Log in.", "api-key-2", json!({}), "api key"),
            ("Log in.", "accessToken", json!({}), "access token"),
            ("Log in.", "token", json!({}), "token"),
            ("Log in.", "client_secret", json!({}), "client secret"),
            ("Log in.", "otp", json!({}), "otp"),
            ("Log in.", "pin", json!({}), "pin"),
            ("Log in.", "tan", json!({}), "tan"),
            ("Log in.", "value", json!({ "title": "Passphrase" }), "passphrase"),
            ("Log in.", "value", json!({ "title": "Kennwort" }), "kennwort"),
            ("Log in.", "value", json!({ "title": "Pin" }), "pin"),
            ("Log in.", "value", json!({ "description": "The token of your account" }), "token"),
            ("Log in.", "value", json!({ "description": "Six digits, the TAN" }), "tan"),
            ("Log in.", "value", json!({ "description": "Your seed phrase" }), "seed phrase"),
            ("Log in.", "card", json!({ "title": "Credit card" }), "credit card"),
            ("Please type your Password.", "value", json!({}), "password"),
            ("Bitte das Passwort eingeben", "value", json!({}), "passwort"),
            ("Send us an access token", "value", json!({}), "access token"),
            ("Enter the PIN", "value", json!({}), "pin"),
            ("Enter the one-time code", "value", json!({}), "one time code"),
            ("Your secret, please", "value", json!({}), "your secret"),
            ("Log in.", "verificationCode", json!({}), "verification code"),
            ("Log in.", "value", json!({ "title": "Recovery phrase" }), "recovery phrase"),
            ("Enter the security code on its back", "value", json!({}), "security code"),
        ] {
            assert_eq!(of_text(message, name, told.clone()).as_deref(), Some(found), "{message} {name} {told}");
        }
    }

    #[test]
    fn text_that_asks_for_no_secret_is_let_through() {
        for (message, name, told) in [
            ("Pin it?", "pinned", json!({})),
            ("Where shall I pin the note?", "place", json!({})),
            ("Choose.", "captoken", json!({})),
            ("Choose.", "maxTokens", json!({})),
            ("Choose.", "secretary", json!({ "title": "Name of the secretary" })),
            ("Choose.", "opinion", json!({})),
            ("Choose.", "spinner", json!({})),
            ("Choose.", "tank", json!({})),
            ("Choose.", "color", json!({ "description": "Red, tan or blue" })),
            ("Choose.", "key", json!({})),
            ("Choose.", "keyboard", json!({})),
            ("Choose.", "passenger", json!({})),
            ("Choose.", "passport_country", json!({})),
            ("Choose.", "code", json!({ "title": "Country code" })),
            ("Choose.", "cvvs_", json!({})),
            ("Choose.", "hotpot", json!({})),
            ("Which token standard is it?", "standard", json!({})),
            ("A secret santa for all?", "name", json!({})),
            ("How many tokens may it use?", "many", json!({})),
            ("Name the card game", "card", json!({})),
            ("Is it credited?", "credit", json!({})),
            ("A passwordless login?", "login", json!({})),
            ("", "value", json!({})),
        ] {
            assert_eq!(of_text(message, name, told.clone()), None, "{message} {name} {told}");
        }
    }

    #[test]
    fn fields_that_can_hold_no_secret_are_not_looked_at() {
        let of = |field: Value| asked_secret("Change the password?", &json!({ "properties": { "password": field } }));
        assert_eq!(of(json!({ "type": "boolean" })), None);
        assert_eq!(of(json!({ "type": "string", "enum": ["change", "keep"] })), None);
        assert_eq!(of(json!({ "type": "string", "format": "email" })), None);
        assert_eq!(of(json!({ "type": "array", "items": { "enum": ["a"] } })), None);
        assert_eq!(of(json!({ "type": "string" })).as_deref(), Some("password"));
    }

    #[test]
    fn number_is_a_secret_by_words_that_mean_nothing_else() {
        let of = |name: &str| asked_secret("", &json!({ "properties": { name: { "type": "integer" } } }));
        for name in ["cvv", "otp", "passcode", "cardNumber"] {
            assert!(of(name).is_some(), "{name}");
        }
        for name in ["max_tokens", "token", "pin", "tan", "secret"] {
            assert_eq!(of(name), None, "{name}");
        }
        let told = |message: &str| asked_secret(message, &json!({ "properties": { "code": { "type": "integer" } } }));
        assert_eq!(told("Enter the one-time code").as_deref(), Some("one time code"));
        assert_eq!(told("How many tokens may it use?"), None);
    }
}
