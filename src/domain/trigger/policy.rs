//! The words a schedule's rules are written in: what happens to late, overlapping and doubly named instants.

use crate::base::words::words;

words! {
    /// The fate of instants that passed while nobody could fire them.
    #[derive(Default, utoipa::ToSchema)]
    pub enum CatchUp {
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
    #[derive(Default, utoipa::ToSchema)]
    pub enum Overlap {
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
    #[derive(Default, utoipa::ToSchema)]
    pub enum DstGap {
        /// It fires once, at the first instant after the gap.
        #[default]
        RunAfter = "run_after",
        /// It does not fire.
        Skip = "skip",
    }
}

words! {
    /// Which of the two instants of a fixed wall time fire that the clock shows twice.
    #[derive(Default, utoipa::ToSchema)]
    pub enum DstFold {
        /// The first one.
        #[default]
        First = "first",
        /// Both of them.
        Both = "both",
    }
}

words! {
    /// The fate of instants that passed while the task was paused.
    #[derive(Default, utoipa::ToSchema)]
    pub enum OnResume {
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
    use crate::base::words::is_default;

    #[test]
    fn every_word_reads_back_and_the_first_one_is_the_default() {
        for word in Overlap::WORDS {
            assert_eq!(Overlap::parse(word).map(Overlap::as_str), Some(word));
            let read: Overlap = serde_json::from_value(serde_json::json!(word)).unwrap();
            assert_eq!(read.as_str(), word);
        }
        assert_eq!(Overlap::parse("queue"), None);
        assert!(is_default(&Overlap::ALL[0]));
        assert!(is_default(&CatchUp::ALL[0]));
        assert!(is_default(&DstGap::ALL[0]));
        assert!(is_default(&DstFold::ALL[0]));
        assert!(is_default(&OnResume::ALL[0]));
    }
}
