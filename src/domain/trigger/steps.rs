//! The budget of a question to a schedule: how many steps its answer may cost.
//!
//! A step is a date, a month or a period that a search looks at, or an exclusion that is asked. It takes tens of
//! nanoseconds, and it is counted instead of time, so that the same schedule is admitted on every machine. A search
//! whose budget is used up finds nothing more; whoever asked looks at [`StepBudget::exceeded`] before it believes that.

use std::cell::Cell;

/// Most steps of all questions at a schedule's creation together, a plan after its longest outage included.
pub const ADMITTED: u64 = 150_000;
/// Most steps of each planning of a stored schedule: more than any admitted one takes.
pub const PLANNED: u64 = 500_000;
/// Most steps of a list of instants, for a preview or a backfill.
pub const LISTED: u64 = 2_000_000;
/// Steps of turning the wall times of one search into an instant.
pub const ZONE: u64 = 8;

/// The steps that are left, and what used them up.
#[derive(Debug, Clone)]
pub struct StepBudget {
    most: u64,
    searched: Cell<u64>,
    excluded: Cell<u64>,
}

/// The part of a schedule that used up most of its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostliestPart {
    /// The search for instants.
    Search,
    /// The comparison with exclusions.
    Exclusions,
}

impl StepBudget {
    /// A budget of so many steps.
    pub fn new(most: u64) -> StepBudget {
        StepBudget { most, searched: Cell::new(0), excluded: Cell::new(0) }
    }

    /// For single searches, which their horizon bounds.
    pub fn unlimited() -> StepBudget {
        StepBudget::new(u64::MAX)
    }

    /// Takes steps of a search; `None` where the budget is used up.
    pub fn search(&self, steps: u64) -> Option<()> {
        self.searched.set(self.searched.get().saturating_add(steps));
        self.exceeded().is_none().then_some(())
    }

    /// Takes steps for exclusions; `None` where the budget is used up.
    pub fn exclude(&self, steps: u64) -> Option<()> {
        self.excluded.set(self.excluded.get().saturating_add(steps));
        self.exceeded().is_none().then_some(())
    }

    /// Steps that were taken so far.
    pub fn used(&self) -> u64 {
        self.searched.get().saturating_add(self.excluded.get())
    }

    /// The cause that used the budget up, if it is.
    pub fn exceeded(&self) -> Option<CostliestPart> {
        let part =
            if self.excluded.get() > self.searched.get() { CostliestPart::Exclusions } else { CostliestPart::Search };
        (self.used() > self.most).then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_budget_is_whole_at_its_last_step_and_used_up_by_the_next() {
        for most in [ADMITTED, PLANNED, LISTED] {
            let steps = StepBudget::new(most);
            assert_eq!((steps.search(most), steps.exceeded()), (Some(()), None), "{most}");
            assert_eq!((steps.exclude(1), steps.exceeded()), (None, Some(CostliestPart::Search)), "{most}");
        }
    }

    #[test]
    fn budget_is_used_up_by_the_step_after_its_last_and_names_what_took_most() {
        let steps = StepBudget::new(10);
        assert_eq!((steps.search(4), steps.exclude(6)), (Some(()), Some(())));
        assert_eq!(steps.exceeded(), None);
        assert_eq!(steps.search(1), None);
        assert_eq!((steps.used(), steps.exceeded()), (11, Some(CostliestPart::Exclusions)));
        let steps = StepBudget::new(1);
        assert_eq!((steps.search(2), steps.exceeded()), (None, Some(CostliestPart::Search)));
    }
}
