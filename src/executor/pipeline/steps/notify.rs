//! `notify`: a message to the tenant's own recipient, by way of the outbox; a repetition is the same message.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::base::invalid::did_you_mean;
use crate::base::template::Template;
use crate::domain::notification::dedupe;
use crate::domain::task::Urgency;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::schema::NotifyStep;
use crate::executor::pipeline::scope::StepScope;
use crate::ports::tool::ToolNotice;

/// Longest beginning of a message that is its subject, in characters.
const SUBJECT_LENGTH: usize = 80;

#[derive(Clone)]
struct NotifyExecution {
    channel: Option<String>,
    urgency: Option<Urgency>,
    subject: Option<Template>,
    message: Template,
}

/// `{"message": …, "subject"?, "channel"?, "urgency"?}`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<NotifyStep>(value)?;
    let channel = reading.text(fields, "channel");
    if let Some(name) = &channel
        && !reading.parts.channels.contains(name)
    {
        let known = reading.parts.channels.clone();
        let hint = did_you_mean(name, known.iter().map(String::as_str));
        let known = if known.is_empty() { "none is configured".into() } else { known.join(", ") };
        reading.below("channel").fault(format!("unknown channel `{name}` ({known}){hint}"));
    }
    let urgency = match reading.text(fields, "urgency").map(|word| (Urgency::parse(&word), word)) {
        Some((None, word)) => {
            let known = Urgency::WORDS;
            let hint = did_you_mean(&word, known);
            reading.below("urgency").fault(format!("unknown urgency `{word}`; there are {}{hint}", known.join(", ")));
            None
        }
        asked => asked.and_then(|(urgency, _)| urgency),
    };
    reading.need(fields, "message")?;
    let (subject, message) = (reading.template(fields, "subject"), reading.template(fields, "message"));
    Some(Box::new(NotifyExecution { channel, urgency, subject, message: message? }))
}

impl NotifyExecution {
    fn words(&self, scope: &StepScope) -> Result<(String, String), StepFault> {
        let text = self.message.text(&scope.template)?;
        let subject = match &self.subject {
            Some(subject) => subject.text(&scope.template)?,
            None => {
                let line = text.trim_start().lines().next().unwrap_or_default();
                line.chars().take(SUBJECT_LENGTH).collect()
            }
        };
        Ok((subject, text))
    }

    async fn tell(&self, act: &StepAction<'_>) -> Result<StepResult, StepFault> {
        let (this, steps) = (self.clone(), self.steps(act.scope));
        let (subject, text) = act.compute(steps, move |scope| this.words(scope)).await?;
        let notice = ToolNotice {
            run_id: act.world.run_id,
            channel: self.channel.clone(),
            urgency: self.urgency,
            subject,
            text,
            subject_ref: None,
            dedupe_key: dedupe::step(act.world.run_id, act.step, act.index),
        };
        Ok(StepResult::plain(act.world.host.notify(&act.world.tenant, notice).await?))
    }
}

impl StepKind for NotifyExecution {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn notifies(&self) -> bool {
        true
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        let texts = self.subject.iter().chain([&self.message]);
        texts.map(|text| text.steps(&scope.template)).sum()
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let (subject, message) = self.words(scope)?;
        Ok(json!({ "channel": self.channel, "subject": subject, "message": message }))
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(async move { Ok(self.tell(act).await?) })
    }
}
