//! Which button was pressed, and what it decides about a question.

use crate::domain::approval::arguments;
use crate::http::api::approvals::decision::Decision;
use crate::http::pages::approve::item::ItemView;

/// The button that a person pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Press {
    /// Shows what was changed, and decides nothing.
    Review,
    /// `None`: all that are open.
    Approve(Option<usize>),
    Cancel(Option<usize>),
    /// Gives what a call lacks.
    Answer(usize),
}

impl Press {
    pub fn read(word: &str) -> Option<Press> {
        let number = |number: &str| if number == "all" { Some(None) } else { number.parse().ok().map(Some) };
        match word.split_once(':') {
            None => (word == "review").then_some(Press::Review),
            Some(("approve", which)) => number(which).map(Press::Approve),
            Some(("cancel", which)) => number(which).map(Press::Cancel),
            Some(("answer", which)) => which.parse().ok().map(Press::Answer),
            Some(_) => None,
        }
    }

    pub fn is_about(self, item: &ItemView) -> bool {
        match self {
            Press::Review | Press::Approve(None) | Press::Cancel(None) => !item.is_input(),
            Press::Approve(Some(one)) | Press::Cancel(Some(one)) => one == item.number,
            Press::Answer(one) => one == item.number && item.is_input(),
        }
    }

    pub fn names_one(self) -> bool {
        matches!(self, Press::Approve(Some(_)) | Press::Cancel(Some(_)) | Press::Answer(_))
    }

    pub fn approves(self) -> bool {
        matches!(self, Press::Approve(_))
    }

    pub fn decision(self, item: &mut ItemView) -> Option<Decision> {
        match self {
            Press::Review => {
                if let Some(changed) = item.changed.clone() {
                    item.assign_faults(arguments::misfits(
                        &item.approval.proposal.parameters,
                        &changed,
                        "/modifications",
                    ));
                }
                None
            }
            Press::Approve(_) => item.approve(),
            Press::Cancel(_) => item.cancel(),
            Press::Answer(_) => item.answer(),
        }
    }
}
