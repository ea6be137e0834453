//! A failure with advice: the two are apart, so that each can be shown in its own place.

use std::error::Error;
use std::fmt;

/// A failure, and how to get past it.
#[derive(Debug)]
pub struct HintedError {
    message: String,
    hint: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl HintedError {
    /// A failure with its hint. Both are in lower case and have no full stop.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> HintedError {
        HintedError { message: message.into(), hint: hint.into(), cause: None }
    }

    /// Names the error behind the failure.
    pub fn caused_by(self, cause: impl Error + Send + Sync + 'static) -> HintedError {
        HintedError { cause: Some(Box::new(cause)), ..self }
    }

    /// The failure without its hint.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How to get past the failure.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for HintedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nhint: {}", self.message, self.hint)
    }
}

impl Error for HintedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_stands_below_the_message_and_the_cause_is_the_source() {
        let error = HintedError::new("it can't listen", "is another one running?").caused_by(fmt::Error);
        assert_eq!((error.message(), error.hint()), ("it can't listen", "is another one running?"));
        assert_eq!(error.to_string(), "it can't listen\nhint: is another one running?");
        assert!(error.source().is_some_and(|cause| cause.is::<fmt::Error>()));
    }
}
