//! Enums whose values have one word each: in JSON, in the database, in settings, on the command line and in sentences.
//!
//! The word stands with the value, and nowhere else.

/// Makes an enum of words: `pub enum Name { Variant = "word", … }`. It is `Copy`, and read and written by serde.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:tt,)+ }
    ) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        $vis enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every word, in the order of the values.
            pub const WORDS: [&'static str; [$($word),+].len()] = [$($word),+];

            /// Every value, in their order.
            pub const ALL: [$name; $name::WORDS.len()] = [$($name::$variant),+];

            /// Its word.
            pub fn as_str(self) -> &'static str {
                $name::WORDS[self as usize]
            }

            /// The value of this word; `None` where there is none.
            pub fn parse(word: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }
    };
}

pub(crate) use words;

/// Whether a value is what holds when nothing is said.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    words! {
        /// A size.
        #[derive(Default)]
        pub enum Size {
            /// Not large.
            Small = "small",
            /// Not small.
            #[default]
            VeryLarge = "very-large",
        }
    }

    #[test]
    fn word_is_read_and_written_wherever_a_value_is() {
        assert_eq!((Size::ALL, Size::WORDS), ([Size::Small, Size::VeryLarge], ["small", "very-large"]));
        for size in Size::ALL {
            assert_eq!(Size::parse(size.as_str()), Some(size));
            let json = serde_json::json!(size.as_str());
            assert_eq!(serde_json::to_value(size).unwrap(), json);
            assert_eq!(serde_json::from_value::<Size>(json).unwrap(), size);
        }
        assert_eq!(Size::parse("VeryLarge"), None);
        assert!(is_default(&Size::VeryLarge) && !is_default(&Size::Small));
    }
}
