//! One question of the page with what a person has put into its form so far, and what they want by it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::approval::{Approval, Choice};
use crate::channel::templates::phrases::Phrases;
use crate::http::approvals::decision::{Decision, GRANT_DAYS, GrantWish, ungrantable};
use crate::http::approve::form::{self, Fault, Field, Sent};
use crate::invalid::{Faults, escape};

/// A question and its form.
#[derive(Debug)]
pub struct Item<'a> {
    /// Its place in the batch, from 0: the form's names begin with it.
    pub number: usize,
    pub approval: &'a Approval,
    /// In which it speaks.
    words: &'a Phrases,
    pub fields: Vec<Field>,
    /// What each field holds.
    pub texts: Vec<String>,
    pub comment: String,
    pub confirmation: String,
    pub grant: GrantForm,
    /// What is wrong with a field, by its number.
    pub faults: Vec<(usize, String)>,
    /// What else is wrong.
    pub other_faults: Vec<(Place, String)>,
    /// The arguments as changed, which the person has to look at before they are decided on.
    pub changed: Option<Value>,
    /// The person is led here first: to its first fault, or to what was changed.
    pub has_focus: bool,
    /// The id of its first fault, where the person is led to that.
    first_fault: Option<String>,
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The id of the element.
    pub id: String,
    /// What the person knows it by; empty: the question itself.
    pub label: String,
    pub fault: String,
}

/// "Always allow this" as it stands in the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantForm {
    pub wanted: bool,
    pub days: i64,
    /// The arguments that have to be the same.
    pub pinned: Vec<String>,
}

/// What a fault that belongs to no argument stands beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Item,
    Grant,
    Comment,
    Confirmation,
}

impl<'a> Item<'a> {
    /// The question as it is shown at first.
    pub fn fresh(number: usize, approval: &'a Approval, words: &'a Phrases) -> Item<'a> {
        let fields = form::fields(&approval.proposal);
        Item {
            number,
            approval,
            words,
            texts: fields.iter().map(|field| field.shown.clone()).collect(),
            fields,
            comment: String::new(),
            confirmation: String::new(),
            grant: GrantForm { wanted: false, days: GRANT_DAYS, pinned: names(approval) },
            faults: Vec::new(),
            other_faults: Vec::new(),
            changed: None,
            has_focus: false,
            first_fault: None,
        }
    }

    /// The question with what was sent; nothing is judged yet.
    pub fn sent(number: usize, approval: &'a Approval, sent: &Sent, words: &'a Phrases) -> Item<'a> {
        let mut item = Item::fresh(number, approval, words);
        let get = |name: &str| sent.get(&format!("{number}.{name}"));
        for (index, text) in item.texts.iter_mut().enumerate() {
            if let Some(sent) = get(&format!("f{index}")) {
                *text = sent.to_owned();
            }
        }
        item.comment = get("comment").unwrap_or_default().trim().to_owned();
        item.confirmation = get("confirmation").unwrap_or_default().trim().to_owned();
        if get("grant").is_some() {
            let days = get("days").and_then(|days| days.parse().ok()).unwrap_or(GRANT_DAYS);
            let all = names(approval).into_iter().enumerate();
            let pinned = all.filter(|(index, _)| get(&format!("g{index}")).is_some()).map(|(_, name)| name);
            item.grant = GrantForm { wanted: true, days, pinned: pinned.collect() };
        }
        item.look();
        item
    }

    /// The arguments as changed, as far as they may run like that.
    pub fn fit_change(&self) -> Option<&Value> {
        let is_unfit = !self.faults.is_empty() || self.other_faults.iter().any(|(place, _)| *place == Place::Item);
        self.changed.as_ref().filter(|_| !is_unfit)
    }

    /// All that is wrong, in the order of the page.
    pub fn spots(&self) -> Vec<Spot> {
        let number = self.number;
        let mut faults = self.faults.clone();
        faults.sort_by_key(|(field, _)| *field);
        let of_field = |(field, fault): (usize, String)| Spot {
            id: format!("i{number}f{field}"),
            label: self.fields[field].label(),
            fault,
        };
        let of_place = |(place, fault): &(Place, String)| {
            let (id, label) = match place {
                Place::Item => (format!("h{number}"), ""),
                Place::Grant => (format!("i{number}days"), "always"),
                Place::Comment => (format!("i{number}comment"), "comment"),
                Place::Confirmation => (format!("i{number}code"), "approve"),
            };
            let label = if label.is_empty() { String::new() } else { self.words.get(label).to_owned() };
            Spot { id, label, fault: fault.clone() }
        };
        let mut others = self.other_faults.clone();
        others.sort_by_key(|(place, _)| *place);
        faults.into_iter().map(of_field).chain(others.iter().map(of_place)).collect()
    }

    /// Leads the person here, once all that is wrong is known.
    pub fn take_focus(&mut self) {
        self.has_focus = true;
        self.first_fault = self.spots().into_iter().next().map(|spot| spot.id);
    }

    /// Whether this element is where the person is led: the first that is wrong.
    pub fn leads_to(&self, id: &str) -> bool {
        self.first_fault.as_deref() == Some(id)
    }

    /// What is wrong with the fields, by their numbers.
    pub fn faults_by_field(&self) -> BTreeMap<usize, Vec<&str>> {
        let mut faults: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (number, fault) in &self.faults {
            faults.entry(*number).or_default().push(fault);
        }
        faults
    }

    /// Whether something has to be corrected.
    pub fn is_faulty(&self) -> bool {
        !self.faults.is_empty() || !self.other_faults.is_empty()
    }

    /// The digest of the call with the changed arguments.
    pub fn changed_digest(&self) -> Option<String> {
        let changed = self.changed.as_ref()?;
        Some(self.approval.proposal.digest(&self.approval.identity(), changed))
    }

    /// Reads the fields: faults beside them, or what would run.
    fn look(&mut self) {
        match form::arguments(&self.fields, &self.texts) {
            Err(faults) => {
                let said = |Fault { phrase, part }| match part {
                    Some((name, text)) => self.words.with(phrase, &[(name, &text)]),
                    None => self.words.get(phrase).to_owned(),
                };
                self.faults = faults.into_iter().map(|(field, fault)| (field, said(fault))).collect();
            }
            Ok(arguments) if self.fields.is_empty() || arguments == self.approval.proposal.arguments => {}
            Ok(arguments) => self.changed = Some(arguments),
        }
    }

    /// The decision to let it run, as shown or as changed.
    pub fn approve(&mut self) -> Option<Decision> {
        let choice = if self.changed.is_some() { Choice::Edit } else { Choice::Approve };
        let grant = &self.grant;
        let wish = GrantWish { days: grant.days, uses: None, arguments: grant.pinned.clone() };
        let decision = Decision {
            arguments: self.changed.clone(),
            grant: Some(wish).filter(|_| grant.wanted),
            ..self.decision(choice)
        };
        if let Some(code) = &self.approval.proposal.confirmation
            && self.confirmation != *code
        {
            let phrase = if self.confirmation.is_empty() { "fault_code_missing" } else { "fault_code_wrong" };
            self.other_faults.push((Place::Confirmation, self.words.get(phrase).to_owned()));
        }
        self.held(decision)
    }

    /// The decision that it does not run.
    pub fn cancel(&mut self) -> Option<Decision> {
        // what stands in the fields is of no matter
        self.faults.clear();
        let decision = self.decision(Choice::Cancel);
        self.held(decision)
    }

    fn decision(&self, choice: Choice) -> Decision {
        Decision {
            choice,
            digest: self.approval.digest.clone(),
            arguments: None,
            comment: Some(self.comment.clone()).filter(|comment| !comment.is_empty()),
            grant: None,
        }
    }

    fn held(&mut self, decision: Decision) -> Option<Decision> {
        if let Err(faults) = decision.check(self.approval) {
            self.place(faults);
        }
        (!self.is_faulty()).then_some(decision)
    }

    /// Puts faults beside what they are about.
    pub fn place(&mut self, faults: Faults) {
        let places: Vec<String> = self.fields.iter().map(pointer).collect();
        for fault in faults.0 {
            let below = |place: &str, other: &str| {
                other.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            // what an object lacks stands beside the first of its parts
            let field = places.iter().position(|place| below(place, &fault.pointer));
            let is_inside = |place: &String| fault.pointer != "/modifications" && below(&fault.pointer, place);
            let field = field.or_else(|| places.iter().position(is_inside));
            match field {
                Some(number) => self.faults.push((number, fault.message)),
                None if fault.pointer == "/comment" => self.other_faults.push((Place::Comment, fault.message)),
                None if fault.pointer.starts_with("/grant") => self.other_faults.push((Place::Grant, fault.message)),
                None => self.other_faults.push((Place::Item, fault.message)),
            }
        }
    }

    /// Whether it can be allowed for good.
    pub fn may_grant(&self) -> bool {
        ungrantable(self.approval).is_none() && self.approval.proposal.confirmation.is_none()
    }
}

/// Where a fault of a field is said to be.
fn pointer(field: &Field) -> String {
    field.path.iter().fold("/modifications".to_owned(), |place, name| format!("{place}/{}", escape(name)))
}

/// The names of the proposed arguments, in order.
pub fn names(approval: &Approval) -> Vec<String> {
    approval.proposal.arguments.as_object().map(Map::keys).into_iter().flatten().cloned().collect()
}
