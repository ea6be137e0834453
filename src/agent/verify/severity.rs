//! How severe a finding is.

use crate::agent::verify::Verdict;
use crate::base::words::words;

words! {
    /// The weight of a finding.
    pub enum Severity {
        /// The verifier does not run.
        Off = "off",
        /// The finding is noted.
        Warning = "warning",
        /// The answer does not go out: the model is asked once more, then the run fails.
        Flag = "flag",
    }
}

impl Severity {
    /// The verdict over findings of this weight.
    pub(super) fn verdict(self, found: Vec<String>) -> Verdict {
        match self {
            Severity::Off => Verdict::default(),
            Severity::Warning => Verdict { warnings: found, flags: Vec::new() },
            Severity::Flag => Verdict { warnings: Vec::new(), flags: found },
        }
    }
}
