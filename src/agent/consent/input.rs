//! Input before a call: what only a person can supply is asked once, and the call is carried out with the answer.

use serde_json::Value;
use uuid::Uuid;

use crate::agent::calls::notice::answered_notice;
use crate::agent::consent::{Consent, QuestionStanding, definition_hash};
use crate::domain::approval::{
    Approval, ApprovalChoice, Category, Consequence, InputForm, OpenQuestion, Proposal, QuestionKind,
};
use crate::domain::run::outcome::SCHEMA_CHANGED;
use crate::domain::run::{ResultNotice, RunError, ToolCall};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, ToolError};

/// Result of the check for missing arguments.
pub enum InputVerdict {
    /// Nothing is missing. The notice tells the model what a person has answered; `None`: nobody was asked. `begun`:
    /// `Some(true)` if an earlier execution may have made the call with this answer; `None` if nobody was asked.
    Ready { call: ToolCall, notice: Option<ResultNotice>, begun: Option<bool> },
    /// A person is asked.
    Ask(Box<Approval>),
    /// A person was asked and has not answered.
    Wait(OpenQuestion),
    /// It is not carried out, and the model is told why.
    Refused(ToolError),
}

impl Consent<'_> {
    /// Decides whether a call has all that it needs; a question about it has this id.
    pub async fn input(
        &self,
        (turn, id): (i64, Uuid),
        call: &ToolCall,
        tool: &RegisteredTool,
        asked: Option<&Approval>,
    ) -> Result<InputVerdict, RunError> {
        if let Some(question) = asked {
            return self.answered_call(call, tool, question).await;
        }
        let ready = || Ok(InputVerdict::Ready { call: call.clone(), notice: None, begun: None });
        if !tool.tool.may_need_input() {
            return ready();
        }
        let (form, arguments) = (tool.tool.clone(), call.args.clone());
        let steps = tool.tool.input_steps(&call.args);
        let form = self.compute.run_if_costly(self.tenant, steps, move || form.input(&arguments)).await;
        let form = form.map_err(|panicked| RunError::fail("panicked", panicked.to_string()))?;
        let Some(form) = form else { return ready() };
        let proposal = self.input_proposal(tool.definition(), form);
        Ok(InputVerdict::Ask(Box::new(self.input_question((turn, id), call, proposal))))
    }

    /// A call for which a person was asked.
    async fn answered_call(
        &self,
        call: &ToolCall,
        tool: &RegisteredTool,
        question: &Approval,
    ) -> Result<InputVerdict, RunError> {
        match self.standing(question) {
            QuestionStanding::Open(question) => return Ok(InputVerdict::Wait(question)),
            QuestionStanding::Refused(observed) => return Ok(InputVerdict::Refused(observed)),
            QuestionStanding::Allowed => {}
        }
        if question.proposal.version != tool.definition().version {
            let message = format!("the fields of `{}` have changed since a person was asked for them", call.name);
            return Err(RunError::fail(SCHEMA_CHANGED, message));
        }
        let begun = self.begin_continuation(question).await?;
        if begun.is_none() {
            return Ok(InputVerdict::Wait(question.open_question()));
        }
        let (args, asked) = (question.arguments().clone(), &question.proposal.arguments);
        let notice = Some(answered_notice(&given(&args, asked)));
        Ok(InputVerdict::Ready { call: ToolCall { args, ..call.clone() }, notice, begun })
    }

    /// The question for what a form has, about a call of the tool with this definition.
    pub(super) fn input_proposal(&self, definition: &Definition, form: InputForm) -> Proposal {
        let settings = self.policy.settings();
        Proposal {
            kind: QuestionKind::Input,
            tool: definition.name.clone(),
            version: definition.version.clone(),
            definition: definition_hash(definition),
            summary: form.question,
            description: form.description,
            arguments: form.values,
            parameters: form.parameters,
            lacks: form.lacks,
            server: None,
            category: Category::Internal,
            consequence: Consequence::Low,
            reasons: Vec::new(),
            reason_codes: Vec::new(),
            options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
            allow_modification: true,
            source: self.approval_context.source.to_owned(),
            delegation_chain: self.chain.to_vec(),
            step: self.step.map(str::to_owned),
            on_expiry: settings.on_expiry,
            approvers: 1,
            excluded_approver: None,
            confirmation: None,
            undo_seconds: None,
            precheck: None,
            timeout_seconds: settings.timeout_minutes * 60,
        }
    }

    /// A question about a call that is put now. The batch is given to all questions of one turn together.
    pub(super) fn input_question(&self, (turn, id): (i64, Uuid), call: &ToolCall, proposal: Proposal) -> Approval {
        Approval::asked(
            (id, Uuid::nil()),
            self.identity(turn, call),
            self.approval_context.task_id,
            proposal,
            self.clock.now(),
        )
    }
}

/// The arguments that a person has given or changed.
fn given(arguments: &Value, asked: &Value) -> Value {
    let fields = arguments.as_object().into_iter().flatten();
    fields
        .filter(|(name, value)| asked.get(name) != Some(value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
