//! The words a schedule's rules are written in: what happens to late, overlapping and doubly named instants.

use serde::{Deserialize, Serialize};

/// An enum of words that are the same in JSON, database and prose.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:tt,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every word, the default first.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in JSON, in the database and in sentences.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// The value of this word; `None` where there is none.
            pub fn parse(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }

            /// Whether this is what holds when nothing is said.
            pub fn is_default(&self) -> bool {
                *self == $name::default()
            }
        }
    };
}

pub(super) use words;

words! {
    /// The fate of instants that passed while nobody could fire them.
    CatchUp {
        /// One run for all of them, told how many.
        #[default]
        Latest = "latest",
        /// A run each, oldest first, the newest 100 at most.
        All = "all",
        /// None of them runs.
        Skip = "skip",
    }
}

words! {
    /// The fate of a run that should start while another of its task is running.
    Overlap {
        /// It is skipped.
        #[default]
        Skip = "skip",
        /// It waits; a further one is skipped.
        QueueOne = "queue_one",
        /// It waits, and so do all that follow.
        QueueAll = "queue_all",
        /// Both run.
        Allow = "allow",
        /// The one that is running is cancelled, and it starts then.
        CancelPrevious = "cancel_previous",
    }
}

words! {
    /// The fate of a fixed wall time that the clock jumps over.
    DstGap {
        /// It fires once, at the first instant after the gap.
        #[default]
        RunAfter = "run_after",
        /// It does not fire.
        Skip = "skip",
    }
}

words! {
    /// Which of the two instants of a fixed wall time fire that the clock shows twice.
    DstFold {
        /// The first one.
        #[default]
        First = "first",
        /// Both of them.
        Both = "both",
    }
}

words! {
    /// The fate of instants that passed while the task was paused.
    OnResume {
        /// Nothing is caught up.
        #[default]
        Skip = "skip",
        /// They count as missed.
        CatchUp = "catch_up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_the_first_one_is_the_default() {
        for word in Overlap::WORDS {
            assert_eq!(Overlap::parse(word).map(Overlap::as_str), Some(*word));
            let read: Overlap = serde_json::from_value(serde_json::json!(word)).unwrap();
            assert_eq!(read.as_str(), *word);
        }
        assert_eq!(Overlap::parse("queue"), None);
        assert!(Overlap::parse(Overlap::WORDS[0]).unwrap().is_default());
        assert!(CatchUp::parse(CatchUp::WORDS[0]).unwrap().is_default());
        assert!(DstGap::parse(DstGap::WORDS[0]).unwrap().is_default());
        assert!(DstFold::parse(DstFold::WORDS[0]).unwrap().is_default());
        assert!(OnResume::parse(OnResume::WORDS[0]).unwrap().is_default());
    }
}
