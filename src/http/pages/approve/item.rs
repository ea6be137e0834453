//! One question of the page with what a person has put into its form so far, and what they want by it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::invalid::escape;
use crate::domain::approval::{Approval, ApprovalChoice, ArgumentFault};
use crate::http::api::approvals::decision::{Decision, GRANT_DAYS, GrantRequest, ungrantable};
use crate::http::pages::approve::form::{self, FormFault, FormField};
use crate::http::pages::approve::page_room::{self, PageQuestion};
use crate::http::pages::approve::submitted_fields::SubmittedFields;
use crate::ports::channel::templates::phrases::Phrases;

/// A question and its form.
#[derive(Debug)]
pub struct ItemView {
    /// Its place in the batch, from 0: the form's names begin with it.
    pub number: usize,
    pub approval: Arc<Approval>,
    /// Bytes of its arguments, where the page shows their beginning alone: it can only be rejected here.
    pub left_out: Option<u64>,
    /// In which it speaks.
    words: Phrases,
    pub fields: Vec<FormField>,
    /// Text of each field.
    pub texts: Vec<String>,
    pub comment: String,
    pub confirmation: String,
    pub grant: GrantForm,
    /// Faults of fields, by the number of the field.
    pub faults: Vec<(usize, String)>,
    /// Faults that belong to no field.
    pub other_faults: Vec<(FaultPlace, String)>,
    /// The arguments as changed, which the person has to look at before they are decided on.
    pub changed: Option<Value>,
    /// The person is led here first: to its first fault, or to what was changed.
    pub has_focus: bool,
    /// The id of its first fault, where the person is led to that.
    first_fault: Option<String>,
}

/// A fault and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedFault {
    /// The id of the element.
    pub id: String,
    /// Name of the place for the person; empty: the question itself.
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

/// Places of faults that belong to no argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultPlace {
    Item,
    Grant,
    Comment,
    Confirmation,
}

impl ItemView {
    /// The questions of a page in their order, each as it is shown at first and as far as there is room for it. This is
    /// computed.
    pub fn of_batch(questions: &[PageQuestion], words: &Phrases) -> Vec<ItemView> {
        let told: Vec<PageQuestion> = questions.iter().map(|question| question.clone().in_language_of(words)).collect();
        let fitted = page_room::fit(&told);
        fitted.iter().enumerate().map(|(number, question)| ItemView::new(number, question, words)).collect()
    }

    /// The question as it is shown at first.
    pub fn new(number: usize, question: &PageQuestion, words: &Phrases) -> ItemView {
        let approval = &question.approval;
        let fields = if question.has_fields { form::fields(&approval.proposal) } else { Vec::new() };
        ItemView {
            number,
            approval: Arc::clone(approval),
            left_out: question.left_out,
            words: words.clone(),
            texts: fields.iter().map(|field| field.initial.clone()).collect(),
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
    pub fn filled(mut self, sent: &SubmittedFields) -> ItemView {
        let number = self.number;
        let get = |name: &str| sent.get(&format!("{number}.{name}"));
        self.texts =
            self.fields.iter().enumerate().map(|(index, field)| field.sent(&format!("f{index}"), get)).collect();
        self.comment = get("comment").unwrap_or_default().trim().to_owned();
        self.confirmation = get("confirmation").unwrap_or_default().trim().to_owned();
        if get("grant").is_some() {
            let days = get("days").and_then(|days| days.parse().ok()).unwrap_or(GRANT_DAYS);
            let all = names(&self.approval).into_iter().enumerate();
            let pinned = all.filter(|(index, _)| get(&format!("g{index}")).is_some()).map(|(_, name)| name);
            self.grant = GrantForm { wanted: true, days, pinned: pinned.collect() };
        }
        self.validate();
        self
    }

    /// The arguments as changed, as far as they may run like that.
    pub fn fit_change(&self) -> Option<&Value> {
        let is_unfit = !self.faults.is_empty() || self.other_faults.iter().any(|(place, _)| *place == FaultPlace::Item);
        self.changed.as_ref().filter(|_| !is_unfit)
    }

    /// All that is wrong, in the order of the page.
    pub fn placed_faults(&self) -> Vec<PlacedFault> {
        let number = self.number;
        let mut faults = self.faults.clone();
        faults.sort_by_key(|(field, _)| *field);
        let of_field = |(field, fault): (usize, String)| PlacedFault {
            id: format!("i{number}f{field}"),
            label: self.fields[field].label(),
            fault,
        };
        let of_place = |(place, fault): &(FaultPlace, String)| {
            let (id, label) = match place {
                FaultPlace::Item => (format!("h{number}"), ""),
                FaultPlace::Grant => (format!("i{number}days"), "always"),
                FaultPlace::Comment => (format!("i{number}comment"), "comment"),
                FaultPlace::Confirmation => (format!("i{number}code"), "approve"),
            };
            let label = if label.is_empty() { String::new() } else { self.words.get(label).to_owned() };
            PlacedFault { id, label, fault: fault.clone() }
        };
        let mut others = self.other_faults.clone();
        others.sort_by_key(|(place, _)| *place);
        faults.into_iter().map(of_field).chain(others.iter().map(of_place)).collect()
    }

    /// Leads the person here, once all that is wrong is known.
    pub fn take_focus(&mut self) {
        self.has_focus = true;
        self.first_fault = self.placed_faults().into_iter().next().map(|spot| spot.id);
    }

    /// Whether this element is where the person is led: the first that is wrong.
    pub fn has_focus(&self, id: &str) -> bool {
        self.first_fault.as_deref() == Some(id)
    }

    /// Faults of the fields, by their numbers.
    pub fn faults_by_field(&self) -> BTreeMap<usize, Vec<&str>> {
        let mut faults: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (number, fault) in &self.faults {
            faults.entry(*number).or_default().push(fault);
        }
        faults
    }

    /// Faults of a place that is no argument.
    pub fn faults_at(&self, place: FaultPlace) -> Vec<&str> {
        self.other_faults.iter().filter(|(at, _)| *at == place).map(|(_, fault)| fault.as_str()).collect()
    }

    /// Whether the question offers this choice here. Nobody agrees to what the page does not show whole.
    pub fn offers(&self, choice: ApprovalChoice) -> bool {
        let is_seen = self.left_out.is_none() || choice == ApprovalChoice::Cancel;
        is_seen && self.approval.proposal.offers(choice)
    }

    /// Puts a fault into the form of a question that the page does not show whole; whether it is one.
    pub fn refuse_unseen(&mut self) -> bool {
        if self.left_out.is_some() {
            self.other_faults.push((FaultPlace::Item, self.words.get("fault_too_large").to_owned()));
        }
        self.left_out.is_some()
    }

    /// Whether it asks for what a call lacks.
    pub fn is_input(&self) -> bool {
        self.approval.proposal.is_input()
    }

    /// Whether an MCP server asks in the middle of a call.
    pub fn is_of_server(&self) -> bool {
        self.approval.proposal.is_of_server()
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
    fn validate(&mut self) {
        match form::arguments(&self.fields, &self.texts) {
            Err(faults) => {
                let text = |FormFault { phrase, part }| match part {
                    Some((name, text)) => self.words.with(phrase, &[(name, &text)]),
                    None => self.words.get(phrase).to_owned(),
                };
                self.faults = faults.into_iter().map(|(field, fault)| (field, text(fault))).collect();
            }
            // an answer is the whole form, whatever of it was there
            Ok(arguments) if self.is_input() => self.changed = Some(arguments),
            Ok(arguments) if self.fields.is_empty() || arguments == self.approval.proposal.arguments => {}
            Ok(arguments) => self.changed = Some(arguments),
        }
    }

    /// The decision to let it run, as shown or as changed. Nothing of it is judged yet but the code.
    pub fn approve(&mut self) -> Decision {
        let choice = if self.changed.is_some() { ApprovalChoice::Edit } else { ApprovalChoice::Approve };
        let grant = &self.grant;
        let request = GrantRequest { days: grant.days, uses: None, args: grant.pinned.clone() };
        let decision = Decision {
            arguments: self.changed.clone(),
            grant: Some(request).filter(|_| grant.wanted),
            ..self.decision(choice)
        };
        if let Some(code) = &self.approval.proposal.confirmation
            && self.confirmation != *code
        {
            let phrase = if self.confirmation.is_empty() { "fault_code_missing" } else { "fault_code_wrong" };
            self.other_faults.push((FaultPlace::Confirmation, self.words.get(phrase).to_owned()));
        }
        decision
    }

    /// The decision that gives what the call lacks; `None`: what was sent can't be read.
    pub fn answer(&self) -> Option<Decision> {
        if self.is_faulty() {
            return None;
        }
        // of what was left as it is, it is said which fields are missing
        let arguments = self.changed.as_ref().unwrap_or(&self.approval.proposal.arguments).clone();
        Some(Decision { arguments: Some(arguments), ..self.decision(ApprovalChoice::Edit) })
    }

    /// The decision that it does not run.
    pub fn cancel(&mut self) -> Decision {
        // what stands in the fields is of no matter
        self.faults.clear();
        self.decision(ApprovalChoice::Cancel)
    }

    /// The decision that the server that asks is told no.
    pub fn decline(&mut self) -> Decision {
        self.faults.clear();
        self.decision(ApprovalChoice::Decline)
    }

    fn decision(&self, choice: ApprovalChoice) -> Decision {
        Decision {
            choice,
            digest: self.approval.digest.clone(),
            arguments: None,
            comment: Some(self.comment.clone()).filter(|comment| !comment.is_empty()),
            grant: None,
        }
    }

    /// Puts what is wrong beside what it is about.
    pub fn assign_faults(&mut self, faults: Vec<ArgumentFault>) {
        let places: Vec<String> = self.fields.iter().map(pointer).collect();
        for fault in faults {
            let text = self.words.fault(&fault);
            let below = |place: &str, other: &str| {
                other.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            // what an object lacks stands beside the first of its parts
            let field = places.iter().position(|place| below(place, &fault.pointer));
            let is_inside = |place: &String| fault.pointer != "/modifications" && below(&fault.pointer, place);
            let field = field.or_else(|| places.iter().position(is_inside));
            match field {
                Some(number) => self.faults.push((number, text)),
                None if fault.pointer == "/comment" => self.other_faults.push((FaultPlace::Comment, text)),
                None if fault.pointer.starts_with("/grant") => self.other_faults.push((FaultPlace::Grant, text)),
                None => self.other_faults.push((FaultPlace::Item, text)),
            }
        }
    }

    /// Whether it can be allowed for good.
    pub fn may_grant(&self) -> bool {
        ungrantable(&self.approval).is_none() && self.approval.proposal.confirmation.is_none()
    }
}

/// Where a fault of a field is said to be.
fn pointer(field: &FormField) -> String {
    field.path.iter().fold("/modifications".to_owned(), |place, name| format!("{place}/{}", escape(name)))
}

/// The names of the proposed arguments, in order.
pub fn names(approval: &Approval) -> Vec<String> {
    approval.proposal.arguments.as_object().map(Map::keys).into_iter().flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::domain::approval::ProposalIdentity;
    use crate::http::pages::approve::fixture::proposal;
    use crate::ports::channel::templates::phrases::Catalogue;

    /// The faults of these arguments for a reader of this language, by the names of the arguments.
    fn text(locale: &str, changed: &Value) -> BTreeMap<String, String> {
        let schema = json!({
            "type": "object", "required": ["to"], "additionalProperties": false,
            "properties": {
                "to": { "type": "string" }, "kind": { "type": ["integer", "null"] },
                "low": { "type": "number", "minimum": 2 }, "high": { "type": "number", "maximum": 9.5 },
                "above": { "type": "number", "exclusiveMinimum": 0 }, "below": { "type": "number", "exclusiveMaximum": 1 },
                "short": { "type": "string", "minLength": 3 }, "long": { "type": "string", "maxLength": 2 },
                "code": { "type": "string", "pattern": "^[A-Z]+$" }, "how": { "enum": ["mail", "fax", 3] },
                "few": { "type": "array", "minItems": 2 }, "many": { "type": "array", "maxItems": 1 },
                "same": { "type": "array", "uniqueItems": true }, "part": { "multipleOf": 5 }, "only": { "const": "this" },
                "empty": { "minProperties": 1 }, "wide": { "maxProperties": 1 }, "named": { "propertyNames": { "pattern": "^a" } },
                "closed": { "properties": { "a": {} }, "unevaluatedProperties": false }, "has": { "contains": { "type": "string" } },
                "not": { "not": { "type": "string" } }, "any": { "anyOf": [{ "type": "string" }, { "type": "boolean" }] },
                "one": { "oneOf": [{ "type": "integer" }, { "type": "number" }] },
            },
        });
        let words = Catalogue::embedded().of(locale);
        let now = DateTime::UNIX_EPOCH;
        let arguments = json!({ "to": "ann" });
        let identity = ProposalIdentity { tenant: "ann", run_id: Uuid::nil(), turn: 0, call_id: "c" };
        let approval = Approval::asked((Uuid::nil(), Uuid::nil()), identity, None, proposal(schema, arguments), now);
        let mut item = ItemView::new(0, &PageQuestion::whole(approval.clone()), &words);
        item.changed = Some(changed.clone());
        let faults = item.approve().faults(&approval);
        item.assign_faults(faults);
        assert!(item.is_faulty());
        let beside = item.faults.iter().map(|(field, fault)| (item.fields[*field].label(), fault.clone()));
        let others = item.other_faults.iter().map(|(_, fault)| (String::new(), fault.clone()));
        beside.chain(others).collect()
    }

    #[test]
    fn faults_of_changed_arguments_are_said_in_the_language_of_the_reader() {
        let changed = json!({
            "kind": "x", "low": 1, "high": 10, "above": 0, "below": 1, "short": "ab", "long": "abc", "code": "ab", "how": "post",
            "few": [1], "many": [1, 2], "same": [1, 1], "part": 7, "only": "that",
        });
        let expected = [
            ("to", "is required", "fehlt"),
            ("kind", "must be a whole number or nothing", "muss eine ganze Zahl oder leer sein"),
            ("low", "must be 2 or more", "muss mindestens 2 sein"),
            ("high", "must be 9.5 or less", "darf höchstens 9.5 sein"),
            ("above", "must be more than 0", "muss größer als 0 sein"),
            ("below", "must be less than 1", "muss kleiner als 1 sein"),
            ("short", "the value is shorter than 3 characters", "ist kürzer als 3 Zeichen"),
            ("long", "the value is longer than 2 characters", "ist länger als 2 Zeichen"),
            (
                "code",
                "must be written as this pattern has it: ^[A-Z]+$",
                "muss geschrieben sein, wie dieses Muster es will: ^[A-Z]+$",
            ),
            ("how", "must be one of mail, fax, 3", "muss eines von diesen sein: mail, fax, 3"),
            ("few", "must have 2 elements or more", "muss mindestens 2 Elemente haben"),
            ("many", "must have 1 elements or fewer", "darf höchstens 1 Elemente haben"),
            ("same", "must have no element twice", "darf kein Element zweimal haben"),
            ("part", "must be a multiple of 5", "muss ein Vielfaches von 5 sein"),
            ("only", "must be one of this", "muss eines von diesen sein: this"),
        ];
        let (english, german) = (text("en", &changed), text("de-AT", &changed));
        for (name, in_english, in_german) in expected {
            assert_eq!((english[name].as_str(), german[name].as_str()), (in_english, in_german), "{name}");
        }
        assert_eq!((english.len(), german.len()), (expected.len(), expected.len()), "{german:?}");
        let more = json!({ "to": "bob", "cc": "carol" });
        assert_eq!(text("de", &more)[""], "gehört nicht zu diesem Werkzeug");
    }

    #[test]
    fn faults_of_rare_keywords_are_said_in_the_language_of_the_reader() {
        let changed = json!({
            "to": "ann", "empty": {}, "wide": { "a": 1, "b": 2 }, "named": { "b": 1 }, "closed": { "b": 1 }, "has": [1],
            "not": "x", "any": 1, "one": 1,
        });
        let expected = [
            ("empty", "must have 1 fields or more", "muss mindestens 1 Felder haben"),
            ("wide", "must have 1 fields or fewer", "darf höchstens 1 Felder haben"),
            ("named", "must have no field called b", "darf kein Feld haben, das b heißt"),
            ("closed", "has what nothing asks for: b", "hat etwas, wonach nicht gefragt ist: b"),
            (
                "has",
                "lacks an element of the kind that is asked for",
                "braucht ein Element der Art, nach der gefragt ist",
            ),
            ("not", "is what it must not be", "ist, was es nicht sein darf"),
            ("any", "is none of the kinds that are taken here", "ist nichts von dem, was hier angenommen wird"),
            (
                "one",
                "is of several kinds of which only one may fit",
                "passt zu mehrerem, von dem nur eines passen darf",
            ),
        ];
        let (english, german) = (text("en", &changed), text("de-AT", &changed));
        for (name, in_english, in_german) in expected {
            let text = |told: &BTreeMap<String, String>| told.get(name).cloned().unwrap_or_default();
            assert_eq!(
                (text(&english).as_str(), text(&german).as_str()),
                (in_english, in_german),
                "{name}: {german:?}"
            );
        }
        assert_eq!((english.len(), german.len()), (expected.len(), expected.len()), "{german:?}");
    }
}
