//! The outcome of a pressed button: decisions, or the page once more.

use std::sync::Arc;

use axum::http::StatusCode;

use crate::domain::approval::Approval;
use crate::http::HttpState;
use crate::http::api::approvals::decision::Decision;
use crate::http::error::ApiError;
use crate::http::pages::approve::approval_page::is_open;
use crate::http::pages::approve::item::ItemView;
use crate::http::pages::approve::press::Press;
use crate::http::pages::approve::submitted_fields::SubmittedFields;

/// The outcome of a pressed button.
#[derive(Debug)]
pub enum PressOutcome {
    /// Its question can't be answered any more.
    Settled(Arc<Approval>),
    /// Nothing is decided yet: something is wrong, or what was changed has to be looked at.
    Shown {
        /// The questions with what was sent, and what is wrong with it.
        items: Vec<ItemView>,
        /// Name of the phrase that says so.
        phrase: &'static str,
        /// The status of the page.
        status: StatusCode,
    },
    /// Nothing is wrong with these decisions. None of them is made yet.
    Decided(Vec<(Arc<Approval>, Decision)>),
}

impl Press {
    /// Judges the button with what was sent beside it. An approval with changes is one only where the page has shown
    /// the call with them.
    ///
    /// # Errors
    /// It can't be judged now.
    pub async fn outcome(
        self,
        state: &HttpState,
        mut items: Vec<ItemView>,
        sent: &SubmittedFields,
    ) -> Result<PressOutcome, ApiError> {
        let now = state.clock.now();
        let mut decisions = Vec::new();
        let mut waits = self == Press::Review;
        for item in items.iter_mut().filter(|item| self.is_about(item)) {
            let stops = matches!(self, Press::Cancel(Some(_))) && item.approval.is_held(now);
            if !is_open(&item.approval, now) && !stops && self.is_for_one_question() {
                return Ok(PressOutcome::Settled(Arc::clone(&item.approval)));
            }
            if !is_open(&item.approval, now) && !stops {
                continue;
            }
            let reviewed = sent.get(&format!("{}.reviewed", item.number));
            match self.decision(item, state).await? {
                // what was changed is looked at once more, as a whole, before it runs
                Some(_)
                    if item.changed.is_some() && self.approves() && item.changed_digest().as_deref() != reviewed =>
                {
                    waits = true;
                }
                Some(decision) => {
                    let unfit = decision.invalid_fields(state, &item.approval).await?;
                    match unfit.is_empty() {
                        true => decisions.push((Arc::clone(&item.approval), decision)),
                        false => item.assign_faults(unfit),
                    }
                }
                None => {}
            }
        }
        let faulty = items.iter().any(|item| self.is_about(item) && item.is_faulty());
        if !faulty && !waits {
            return Ok(PressOutcome::Decided(decisions));
        }
        set_focus(&mut items);
        Ok(match faulty {
            true => PressOutcome::Shown { items, phrase: "nothing_faulty", status: StatusCode::UNPROCESSABLE_ENTITY },
            false => PressOutcome::Shown { items, phrase: "nothing_changed", status: StatusCode::OK },
        })
    }
}

/// Marks where the person is led: to the first thing that is wrong, else to the first that was changed.
fn set_focus(items: &mut [ItemView]) {
    let faulty = items.iter().position(ItemView::is_faulty);
    let first = faulty.or_else(|| items.iter().position(|item| item.changed.is_some() && !item.is_input()));
    if let Some(first) = first {
        items[first].take_focus();
    }
}
