//! `publish`: an event on the bus, under an id that is the step's own, so that a repetition is the same event.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::json::length::bytes_of;
use crate::base::template::{Template, Tree};
use crate::domain::event::{Data, Event};
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::schema::PublishStep;
use crate::executor::pipeline::scope::{HOPS, StepScope};

/// The source of events that name none.
const SOURCE: &str = "reveille/pipeline";
/// More than this is taken for a circle.
const MOST_HOPS: i64 = 16;

#[derive(Clone)]
struct Publish {
    kind: Template,
    source: Option<Template>,
    subject: Option<Template>,
    data: Option<Tree>,
}

/// `{"type": …, "source"?, "subject"?, "data"?}`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<PublishStep>(value)?;
    reading.need(fields, "type")?;
    let kind = reading.template(fields, "type");
    let source = reading.template(fields, "source");
    let subject = reading.template(fields, "subject");
    let data = reading.tree(fields, "data");
    Some(Box::new(Publish { kind: kind?, source, subject, data }))
}

impl Publish {
    /// The event without its id, tenant and time.
    fn body(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let text = |template: &Option<Template>| template.as_ref().map(|t| t.text(&scope.template)).transpose();
        let mut body = json!({
            "specversion": "1.0", "type": self.kind.text(&scope.template)?,
            "source": text(&self.source)?.unwrap_or_else(|| SOURCE.into()),
            HOPS: self.hops(scope)?,
        });
        if let Some(subject) = text(&self.subject)? {
            body["subject"] = json!(subject);
        }
        if let Some(data) = &self.data {
            body["data"] = data.value(&scope.template)?;
        }
        Ok(body)
    }

    /// One more than the event that made this task fire.
    fn hops(&self, scope: &StepScope) -> Result<i64, StepFault> {
        match scope.hops() + 1 {
            hops if hops > MOST_HOPS => {
                let message = format!("the event came through {MOST_HOPS} pipelines already: they run in a circle");
                Err(StepFault::new("circle", message))
            }
            hops => Ok(hops),
        }
    }

    fn event(&self, scope: &StepScope, id: &str, tenant: &Tenant) -> Result<Event, StepFault> {
        let mut body = self.body(scope)?;
        body["id"] = json!(id);
        body[crate::domain::event::TENANT] = json!(tenant.as_str());
        let mut faults = ValidationErrors::new();
        let event = Event::parse_of_stored_tenant(&body, "", &mut faults)
            .ok_or_else(|| StepFault::new("invalid_event", faults.to_string()))?;
        if let Data::Json(data) = &event.data
            && bytes_of(data) > crate::domain::event::EVENT_BYTES
        {
            return Err(StepFault::new("too_large", "the event's data is too large"));
        }
        Ok(event)
    }

    async fn publish(&self, act: &StepAction<'_>) -> Result<StepResult, StepFault> {
        let (this, steps) = (self.clone(), self.steps(act.scope));
        let (id, tenant) = (format!("{}:{}", act.world.run_id, act.place()), act.world.tenant.clone());
        let event = act.compute(steps, move |scope| this.event(scope, &id, &tenant)).await?;
        let value = json!({ "id": event.id, "source": event.source, "type": event.kind });
        act.world.host.publish_event(&act.world.tenant, event).await?;
        Ok(StepResult::plain(value))
    }
}

impl StepKind for Publish {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        let texts = self.source.iter().chain(&self.subject).chain([&self.kind]);
        let texts: u64 = texts.map(|text| text.steps(&scope.template)).sum();
        texts + self.data.as_ref().map_or(0, |data| data.steps(&scope.template))
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        self.body(scope)
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(async move { Ok(self.publish(act).await?) })
    }
}
