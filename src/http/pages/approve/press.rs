//! Which button was pressed, and what it decides about a question.

use std::sync::Arc;

use crate::domain::approval::arguments;
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::error::ApiError;
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
    /// Tells the server that asks no.
    Decline(usize),
}

impl Press {
    /// Reads the value of a button.
    pub fn read(word: &str) -> Option<Press> {
        let number = |number: &str| if number == "all" { Some(None) } else { number.parse().ok().map(Some) };
        match word.split_once(':') {
            None => (word == "review").then_some(Press::Review),
            Some(("approve", which)) => number(which).map(Press::Approve),
            Some(("cancel", which)) => number(which).map(Press::Cancel),
            Some(("answer", which)) => which.parse().ok().map(Press::Answer),
            Some(("decline", which)) => which.parse().ok().map(Press::Decline),
            Some(_) => None,
        }
    }

    /// Whether the button concerns this question.
    pub fn is_about(self, item: &ItemView) -> bool {
        match self {
            Press::Review | Press::Approve(None) | Press::Cancel(None) => !item.is_input(),
            Press::Approve(Some(one)) | Press::Cancel(Some(one)) => one == item.number,
            Press::Answer(one) => one == item.number && item.is_input(),
            Press::Decline(one) => one == item.number && item.is_of_server(),
        }
    }

    /// Whether the button stands at one question.
    pub fn is_for_one_question(self) -> bool {
        matches!(self, Press::Approve(Some(_)) | Press::Cancel(Some(_)) | Press::Answer(_) | Press::Decline(_))
    }

    /// Whether the button approves calls.
    pub fn approves(self) -> bool {
        matches!(self, Press::Approve(_))
    }

    /// The decision about a question, where nothing is wrong with it; its faults are put into the form. The arguments
    /// are held against the tool's schema on a computing thread.
    pub async fn decision(self, item: &mut ItemView, state: &HttpState) -> Result<Option<Decision>, ApiError> {
        if matches!(self, Press::Approve(_) | Press::Answer(_) | Press::Decline(_)) && item.refuse_unseen() {
            return Ok(None);
        }
        let approval = Arc::clone(&item.approval);
        let decision = match self {
            Press::Review => {
                if let Some(changed) = item.changed.clone() {
                    let parameters = approval.proposal.parameters.clone();
                    let judge = move || arguments::faults(&parameters, &changed, "/modifications");
                    let faults = state.compute_for(&approval.tenant_id, judge).await?;
                    item.assign_faults(faults);
                }
                return Ok(None);
            }
            Press::Approve(_) => item.approve(),
            Press::Cancel(_) => item.cancel(),
            Press::Decline(_) => item.decline(),
            Press::Answer(_) => match item.answer() {
                Some(answer) => answer,
                None => return Ok(None),
            },
        };
        let faults = decision.computed_faults(state, &approval).await?;
        item.assign_faults(faults);
        Ok((!item.is_faulty()).then_some(decision))
    }
}
