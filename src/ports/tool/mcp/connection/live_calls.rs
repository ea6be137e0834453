//! Calls under way over one connection, for what their server asks a person in the middle of one.
//!
//! A question is answered at once: with the answer that a person has given to it before, or with `cancel`, which says
//! that nobody made a choice. A question of which nobody knows the call is shown to nobody: that call may be another
//! tenant's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, RequestId};
use rmcp::service::InboundStreamOrigin;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::ports::tool::mcp::input::asked_key;

/// Most questions in the middle of one call that are kept; further ones are answered all the same.
pub const ASKED_PER_CALL: usize = 4;
/// How long a question waits until the number is known under which its call was sent.
const SENT_WITHIN: Duration = Duration::from_secs(1);
/// How long a server may go on asking for a call that nobody waits for any more: the longest time of a call.
const ASKS_ON_FOR: Duration = Duration::from_secs(300);

/// The calls under way over one connection. Shared with the handler of what the server asks.
#[derive(Default)]
pub struct LiveCalls {
    calls: Mutex<CallsUnderWay>,
    /// Told whenever a call was sent, or has ended.
    moved: watch::Sender<()>,
}

#[derive(Default)]
struct CallsUnderWay {
    last: u64,
    calls: BTreeMap<u64, CallUnderWay>,
    /// When a call was last given up that the server had not answered.
    given_up: Option<Instant>,
}

#[derive(Default)]
struct CallUnderWay {
    /// `None`: it is not sent yet.
    id: Option<RequestId>,
    is_answered: bool,
    prepared: BTreeMap<String, PreparedAnswer>,
    asked: Vec<ElicitRequestParams>,
    is_unplaced: bool,
}

/// The answer that a person has given to a question, for when it is asked again.
struct PreparedAnswer {
    result: ElicitResult,
    /// The page that it was given for, once it was.
    page: Option<String>,
}

/// A call under way. It ends when this is dropped.
pub struct LiveCall {
    live: Arc<LiveCalls>,
    number: u64,
}

impl LiveCalls {
    /// Begins a call, with answers that lie ready by the keys of their questions ([`asked_key`]).
    pub fn enter(self: &Arc<Self>, prepared: BTreeMap<String, Value>) -> LiveCall {
        let read = |(key, answer)| {
            let result = serde_json::from_value(answer).ok()?;
            Some((key, PreparedAnswer { result, page: None }))
        };
        let prepared = prepared.into_iter().filter_map(read).collect();
        let number = self.lock().enter(CallUnderWay { prepared, ..CallUnderWay::default() });
        LiveCall { live: Arc::clone(self), number }
    }

    /// The answer to a question; `origin`: the stream on which it came, where streams are told apart.
    pub async fn answer(&self, asked: ElicitRequestParams, origin: Option<&InboundStreamOrigin>) -> ElicitResult {
        let key = asked_key(&asked);
        if let Some(InboundStreamOrigin::OutboundRequest(id)) = origin {
            self.until_sent(id).await;
        }
        let answer = self.lock().answer(&key, asked, origin);
        answer.unwrap_or_else(|| ElicitResult::new(ElicitationAction::Cancel))
    }

    /// Returns once the call with this number is known, or none is left that it could be; or after a while.
    async fn until_sent(&self, id: &RequestId) {
        let sent = async {
            let mut moved = self.moved.subscribe();
            loop {
                let is_known = self.lock().knows(id);
                if is_known || moved.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(SENT_WITHIN, sent).await;
    }

    fn lock(&self) -> MutexGuard<'_, CallsUnderWay> {
        self.calls.lock().expect("lock of the calls under way")
    }
}

impl CallsUnderWay {
    fn enter(&mut self, call: CallUnderWay) -> u64 {
        self.last += 1;
        self.calls.insert(self.last, call);
        self.last
    }

    fn leave(&mut self, number: u64) -> Option<CallUnderWay> {
        let call = self.calls.remove(&number)?;
        if call.id.is_some() && !call.is_answered {
            self.given_up = Some(Instant::now());
        }
        Some(call)
    }

    /// The answer that lies ready; `None`: there is none, and the question is kept for the call, where it is known.
    fn answer(
        &mut self,
        key: &str,
        asked: ElicitRequestParams,
        origin: Option<&InboundStreamOrigin>,
    ) -> Option<ElicitResult> {
        let place = self.place(origin, Instant::now());
        match place.and_then(|number| self.calls.get_mut(&number)) {
            Some(call) => call.answer(key, asked),
            None => {
                self.mark(origin);
                None
            }
        }
    }

    /// The call that a question belongs to; `None`: nobody knows.
    fn place(&self, origin: Option<&InboundStreamOrigin>, now: Instant) -> Option<u64> {
        match origin {
            Some(InboundStreamOrigin::OutboundRequest(id)) => self.find(id),
            // servers of the official SDK ask on the stream of no request, too, in the middle of a call
            Some(InboundStreamOrigin::Unassociated) | None if self.may_ask_for_one_given_up(now) => None,
            Some(InboundStreamOrigin::Unassociated) | None => {
                self.calls.keys().next().copied().filter(|_| self.calls.len() == 1)
            }
        }
    }

    /// Notes a question without a place with each call that it could belong to.
    fn mark(&mut self, origin: Option<&InboundStreamOrigin>) {
        let is_of_a_request = matches!(origin, Some(InboundStreamOrigin::OutboundRequest(_)));
        for call in self.calls.values_mut() {
            call.is_unplaced |= !is_of_a_request || call.id.is_none();
        }
    }

    fn may_ask_for_one_given_up(&self, now: Instant) -> bool {
        self.given_up.is_some_and(|given_up| now.saturating_duration_since(given_up) < ASKS_ON_FOR)
    }

    /// Whether waiting makes nothing clearer about a request with this number.
    fn knows(&self, id: &RequestId) -> bool {
        self.find(id).is_some() || self.calls.values().all(|call| call.id.is_some())
    }

    fn find(&self, id: &RequestId) -> Option<u64> {
        let (number, _) = self.calls.iter().find(|(_, call)| call.id.as_ref() == Some(id))?;
        Some(*number)
    }
}

impl CallUnderWay {
    fn answer(&mut self, key: &str, asked: ElicitRequestParams) -> Option<ElicitResult> {
        let prepared = self.prepared.get_mut(key).and_then(|prepared| prepared.given_to(&asked));
        if prepared.is_none() && self.asked.len() < ASKED_PER_CALL {
            self.asked.push(asked);
        }
        prepared
    }
}

impl PreparedAnswer {
    /// The answer, as often as the same is asked; `None`: it was given for a page that differs in its query.
    fn given_to(&mut self, asked: &ElicitRequestParams) -> Option<ElicitResult> {
        if let ElicitRequestParams::UrlElicitationParams { url, .. } = asked {
            let page = self.page.get_or_insert_with(|| url.clone());
            if page != url {
                return None;
            }
        }
        Some(self.result.clone())
    }
}

impl LiveCall {
    /// Notes the number under which it was sent.
    pub fn sent_as(&self, id: RequestId) {
        if let Some(call) = self.live.lock().calls.get_mut(&self.number) {
            call.id = Some(id);
        }
        self.live.moved.send_replace(());
    }

    /// Notes that the server has answered it, and so asks nothing more for it.
    pub fn answered(&self) {
        if let Some(call) = self.live.lock().calls.get_mut(&self.number) {
            call.is_answered = true;
        }
    }

    /// Ends it: the questions for which no answer lay ready, and whether one came of which nobody knows the call.
    pub fn take(self) -> (Vec<ElicitRequestParams>, bool) {
        let call = self.leave().unwrap_or_default();
        (call.asked, call.is_unplaced)
    }

    fn leave(&self) -> Option<CallUnderWay> {
        let call = self.live.lock().leave(self.number);
        self.live.moved.send_replace(());
        call
    }
}

impl Drop for LiveCall {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use serde_json::json;

    use super::*;

    fn form(message: &str) -> ElicitRequestParams {
        let sure = json!({ "type": "object", "properties": { "sure": { "type": "boolean" } } });
        serde_json::from_value(json!({ "mode": "form", "message": message, "requestedSchema": sure })).unwrap()
    }

    fn page(url: &str) -> ElicitRequestParams {
        let id = format!("of {url}");
        serde_json::from_value(json!({ "mode": "url", "message": "Go there.", "url": url, "elicitationId": id }))
            .unwrap()
    }

    fn yes() -> Value {
        json!({ "action": "accept", "content": { "sure": true } })
    }

    fn prepared(asked: &ElicitRequestParams, answer: Value) -> BTreeMap<String, Value> {
        BTreeMap::from([(asked_key(asked), answer)])
    }

    fn number(id: i64) -> RequestId {
        RequestId::Number(id)
    }

    fn of(id: i64) -> InboundStreamOrigin {
        InboundStreamOrigin::OutboundRequest(number(id))
    }

    /// A call that was sent under this number.
    fn sent(live: &Arc<LiveCalls>, id: i64) -> LiveCall {
        let call = live.enter(BTreeMap::new());
        call.sent_as(number(id));
        call
    }

    async fn action(live: &LiveCalls, asked: ElicitRequestParams, origin: Option<InboundStreamOrigin>) -> Value {
        serde_json::to_value(live.answer(asked, origin.as_ref()).await).unwrap()["action"].take()
    }

    #[tokio::test]
    async fn question_is_answered_as_a_person_has_answered_it_and_else_told_that_nobody_chose() {
        let live = Arc::new(LiveCalls::default());
        let call = live.enter(prepared(&form("Sure?"), yes()));
        for _ in 0..2 {
            assert_eq!(serde_json::to_value(live.answer(form("Sure?"), None).await).unwrap(), yes());
        }
        let other = live.answer(form("Really?"), None).await;
        assert_eq!(serde_json::to_value(other).unwrap(), json!({ "action": "cancel" }));
        assert_eq!(call.take(), (vec![form("Really?")], false));
        let declined = live.enter(prepared(&form("Sure?"), json!({ "action": "decline" })));
        assert_eq!(action(&live, form("Sure?"), None).await, "decline");
        drop(declined);
        let senseless = live.enter(prepared(&form("Sure?"), json!({ "action": "perhaps" })));
        assert_eq!(action(&live, form("Sure?"), None).await, "cancel");
        assert_eq!(senseless.take().0.len(), 1);
    }

    #[tokio::test]
    async fn answer_about_a_page_is_given_for_one_query_alone() {
        let live = Arc::new(LiveCalls::default());
        let first = page("https://example.org/pay?id=1");
        let call = live.enter(prepared(&first, json!({ "action": "accept" })));
        let again = page("https://example.org/pay?id=2");
        assert_eq!(action(&live, again.clone(), None).await, "accept", "its query may be new each time");
        assert_eq!(action(&live, again, None).await, "accept");
        assert_eq!(action(&live, first.clone(), None).await, "cancel");
        assert_eq!(call.take(), (vec![first], false));
    }

    #[tokio::test]
    async fn question_belongs_to_the_call_on_whose_stream_it_came() {
        let live = Arc::new(LiveCalls::default());
        let (one, two) = (sent(&live, 1), sent(&live, 2));
        assert_eq!(action(&live, form("Sure?"), Some(of(2))).await, "cancel");
        assert_eq!((one.take(), two.take()), ((vec![], false), (vec![form("Sure?")], false)));
    }

    #[tokio::test]
    async fn question_waits_for_the_number_of_its_call() {
        let live = Arc::new(LiveCalls::default());
        let call = live.enter(prepared(&form("Sure?"), yes()));
        let origin = of(7);
        {
            let mut answer = pin!(live.answer(form("Sure?"), Some(&origin)));
            assert!((&mut answer).now_or_never().is_none());
            call.sent_as(number(7));
            assert_eq!(serde_json::to_value(answer.await).unwrap(), yes());
        }
        let other = live.enter(BTreeMap::new());
        let origin = of(8);
        let mut late = pin!(live.answer(form("Sure?"), Some(&origin)));
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(late.await.action, ElicitationAction::Cancel, "for a second, and no longer");
        assert_eq!(
            (call.take(), other.take()),
            ((vec![], false), (vec![], true)),
            "it may be of the one without a number"
        );
    }

    #[tokio::test]
    async fn question_of_a_request_that_is_no_call_is_put_to_no_call() {
        let live = Arc::new(LiveCalls::default());
        let call = sent(&live, 1);
        let origin = of(2);
        let answer = live.answer(form("Sure?"), Some(&origin)).now_or_never();
        assert_eq!(answer.map(|answer| answer.action), Some(ElicitationAction::Cancel), "nothing is waited for");
        assert_eq!(call.take(), (vec![], false));
    }

    #[tokio::test]
    async fn question_without_the_stream_of_a_call_belongs_to_the_only_one_and_among_two_to_neither() {
        for origin in [None, Some(InboundStreamOrigin::Unassociated)] {
            let live = Arc::new(LiveCalls::default());
            let one = sent(&live, 1);
            assert_eq!(action(&live, form("Sure?"), origin.clone()).await, "cancel");
            let two = live.enter(prepared(&form("Sure?"), yes()));
            let among_two = action(&live, form("Sure?"), origin).await;
            assert_eq!(among_two, "cancel", "an answer is for the call of its tenant alone");
            let three = sent(&live, 3);
            assert_eq!(one.take(), (vec![form("Sure?")], true));
            assert_eq!((two.take(), three.take()), ((vec![], true), (vec![], false)));
        }
    }

    #[tokio::test]
    async fn question_without_a_call_is_told_that_nobody_chose() {
        let live = Arc::new(LiveCalls::default());
        for origin in [None, Some(InboundStreamOrigin::Unassociated), Some(of(1))] {
            assert_eq!(action(&live, form("Sure?"), origin).await, "cancel");
        }
    }

    #[tokio::test]
    async fn question_after_a_call_that_was_given_up_may_be_of_that_one() {
        let live = Arc::new(LiveCalls::default());
        let answered = sent(&live, 1);
        answered.answered();
        drop(answered);
        drop(live.enter(BTreeMap::new()));
        let call = sent(&live, 2);
        assert_eq!(action(&live, form("Sure?"), None).await, "cancel");
        assert_eq!(call.take(), (vec![form("Sure?")], false), "one that was answered or not sent asks nothing");
        let call = sent(&live, 3);
        assert_eq!(action(&live, form("Sure?"), None).await, "cancel");
        assert_eq!(action(&live, form("Sure?"), Some(of(3))).await, "cancel");
        assert_eq!(call.take(), (vec![form("Sure?")], true), "where streams are told apart, there is no doubt");
        let call = sent(&live, 4);
        let place = |now: Instant| live.lock().place(None, now);
        let now = Instant::now();
        assert_eq!([place(now).is_some(), place(now + ASKS_ON_FOR).is_some()], [false, true]);
        drop(call);
    }

    #[tokio::test]
    async fn questions_of_a_call_are_kept_up_to_their_most_and_all_are_answered() {
        let live = Arc::new(LiveCalls::default());
        let call = sent(&live, 1);
        for n in 0..ASKED_PER_CALL + 1 {
            assert_eq!(action(&live, form(&format!("Sure of {n}?")), None).await, "cancel");
        }
        let (asked, is_unplaced) = call.take();
        assert_eq!((asked.len(), asked.last()), (ASKED_PER_CALL, Some(&form("Sure of 3?"))));
        assert!(!is_unplaced);
    }
}
