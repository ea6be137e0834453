//! Spans of [`trace`](crate::base::metrics::trace) as they are exported.
//!
//! The first execution of a run has the trace that the run's id names. A later one, after a suspension, a repetition or
//! a crash, has a trace of its own, with a link to the root of the first. A run is sampled or not by its id: all its
//! executions alike, on every instance.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::SystemTime;

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, Key, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks, SpanProcessor};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use uuid::Uuid;

use crate::base::clock::machine_time;
use crate::base::metrics::trace::{CONVERSATION_ID, ERROR, IS_FIRST, NAME, RUN_ID};

/// Makes spans and gives them to a processor once they have ended.
pub struct TraceLayer<P> {
    processor: P,
    /// The part of the runs that is sampled, from 0 to 1.
    sampling: f64,
    scope: InstrumentationScope,
}

/// A span that has not ended.
struct OpenSpan {
    context: SpanContext,
    parent: SpanId,
    link: Option<SpanContext>,
    /// The conversation that its root names, else the run of that.
    conversation: String,
    started: SystemTime,
    fields: SpanFields,
}

/// The fields of a span.
#[derive(Default)]
struct SpanFields {
    name: Option<String>,
    run_id: Option<Uuid>,
    conversation: Option<String>,
    is_first: bool,
    error: Option<String>,
    attributes: Vec<KeyValue>,
}

impl<P: SpanProcessor> TraceLayer<P> {
    /// A layer for this part of the runs.
    pub fn new(processor: P, sampling: f64) -> TraceLayer<P> {
        let scope = InstrumentationScope::builder("reveille").with_version(env!("CARGO_PKG_VERSION")).build();
        TraceLayer { processor, sampling, scope }
    }
}

impl<S, P> Layer<S> for TraceLayer<P>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    P: SpanProcessor + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = SpanFields::default();
        attributes.record(&mut fields);
        let parent = span.parent().and_then(|parent| {
            let extensions = parent.extensions();
            extensions.get::<OpenSpan>().map(|open| (open.context.clone(), open.conversation.clone()))
        });
        let started = machine_time();
        let open = match (parent, fields.run_id) {
            (Some((parent, conversation)), _) => {
                let context = sampled(parent.trace_id(), SpanId::from(fastrand::u64(1..)));
                fields.attributes.push(KeyValue::new(CONVERSATION_ID, conversation.clone()));
                OpenSpan { context, parent: parent.span_id(), link: None, conversation, started, fields }
            }
            (None, Some(run_id)) if is_sampled(run_id, self.sampling) => {
                let first = root_of(run_id);
                let (context, link) = match fields.is_first {
                    true => (first, None),
                    false => {
                        let trace = TraceId::from(fastrand::u128(1..));
                        (sampled(trace, SpanId::from(fastrand::u64(1..))), Some(first))
                    }
                };
                let conversation = fields.conversation.take().unwrap_or_else(|| run_id.to_string());
                OpenSpan { context, parent: SpanId::INVALID, link, conversation, started, fields }
            }
            // what belongs to no run, or to one that is not sampled
            (None, _) => return,
        };
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        let name = open.fields.name.map_or(Cow::Borrowed(span.name()), Cow::Owned);
        let mut links = SpanLinks::default();
        links.links.extend(open.link.map(Link::with_context));
        let kind = if span.name() == "chat" { SpanKind::Client } else { SpanKind::Internal };
        self.processor.on_end(SpanData {
            span_context: open.context,
            parent_span_id: open.parent,
            parent_span_is_remote: false,
            span_kind: kind,
            name,
            start_time: open.started,
            end_time: machine_time(),
            attributes: open.fields.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: open.fields.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        });
    }
}

impl SpanFields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.attributes.push(KeyValue::new(Key::from_static_str(field.name()), value));
    }
}

impl Visit for SpanFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            NAME => return self.name = Some(value.to_owned()),
            RUN_ID => self.run_id = value.parse().ok(),
            CONVERSATION_ID => self.conversation = Some(value.to_owned()),
            ERROR => self.error = Some(value.to_owned()),
            _ => {}
        }
        self.add(field, value.to_owned());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            IS_FIRST => self.is_first = value,
            _ => self.add(field, value),
        }
    }
}

/// The root of the first execution of a run. Every instance knows it without having seen it.
fn root_of(run_id: Uuid) -> SpanContext {
    let (high, low) = run_id.as_u64_pair();
    sampled(TraceId::from(run_id.as_u128()), SpanId::from((high ^ low.rotate_left(32)).max(1)))
}

fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// Whether a run is among this part of all runs: by a number that its id is mixed to (the last step of SplitMix64).
fn is_sampled(run_id: Uuid, part: f64) -> bool {
    let (high, low) = run_id.as_u64_pair();
    let mut mixed = high.wrapping_add(low);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let place = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
    place < part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::machine_now;
    use crate::base::id::new_id;

    #[test]
    fn part_of_the_runs_is_sampled_and_a_larger_part_holds_a_smaller_one() {
        let runs: Vec<Uuid> = (0..10_000).map(|_| new_id(machine_now())).collect();
        let count = |part: f64| runs.iter().filter(|run| is_sampled(**run, part)).count();
        assert_eq!((count(0.0), count(1.0)), (0, runs.len()));
        assert!((800..1200).contains(&count(0.1)), "{}", count(0.1));
        assert!(runs.iter().all(|run| !is_sampled(*run, 0.1) || is_sampled(*run, 0.2)));
    }

    #[test]
    fn trace_of_a_run_is_its_id_and_its_root_is_known_everywhere() {
        let run = new_id(machine_now());
        let root = root_of(run);
        assert_eq!(root.trace_id().to_string(), run.simple().to_string());
        assert!(root == root_of(run) && root.is_valid() && root.is_sampled());
        assert_ne!(root.span_id(), root_of(new_id(machine_now())).span_id());
    }
}
