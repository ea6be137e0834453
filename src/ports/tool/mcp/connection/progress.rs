//! How far calls over one connection are, as their server tells it.
//!
//! Notices come in no order, and may come before anybody follows their call: only a greater number takes the place of
//! another, and a few notes lie ready for who comes late. The latest of a call is told, in its pace.

use std::collections::HashMap;
use std::future::pending;
use std::mem::take;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lru::LruCache;
use rmcp::model::{NumberOrString, ProgressNotificationParam, ProgressToken};
use tokio::sync::watch;

use crate::base::clock::pause;
use crate::ports::tool::progress::{PACE, ProgressNote, ToolProgress};
use crate::ports::vault::credentials::UsedSecrets;

/// Most calls whose first notes are kept until somebody follows them.
const EARLY: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Longest message that is read, in bytes. A longer one is left out and not cut: a secret at its end would be cut in
/// two, and known by nobody.
pub const READ_BYTES: usize = 4 * 1_024;

/// The calls whose progress is followed, by the tokens under which their server tells it. All clones are one.
#[derive(Clone, Default)]
pub struct ProgressRoutes(Arc<Mutex<ProgressTokens>>);

struct ProgressTokens {
    followed: HashMap<ProgressToken, watch::Sender<Option<ProgressNote>>>,
    /// Notes of calls that nobody follows yet.
    early: LruCache<ProgressToken, ProgressNote>,
}

impl Default for ProgressTokens {
    fn default() -> ProgressTokens {
        ProgressTokens { followed: HashMap::new(), early: LruCache::new(EARLY) }
    }
}

impl ProgressRoutes {
    /// Takes a notice of the server.
    pub fn put(&self, params: ProgressNotificationParam) {
        let token = params.progress_token;
        let message = params.message.filter(|message| message.len() <= READ_BYTES);
        let note = ProgressNote { progress: params.progress, total: params.total, message };
        if !note.progress.is_finite() {
            return;
        }
        let mut routes = self.lock();
        if let Some(followed) = routes.followed.get(&token) {
            followed.send_if_modified(|kept| advance(kept, note));
            return;
        }
        // tokens of ours are numbers, and others may be of any length
        if matches!(token.0, NumberOrString::Number(_)) {
            let mut kept = routes.early.pop(&token);
            advance(&mut kept, note);
            if let Some(kept) = kept {
                routes.early.put(token, kept);
            }
        }
    }

    /// Follows the call of this token, until the answer is dropped.
    pub fn follow(&self, token: &ProgressToken) -> FollowedProgress {
        let mut routes = self.lock();
        let early = routes.early.pop(token);
        let has_begun = early.is_some();
        let (sender, mut notes) = watch::channel(early);
        if has_begun {
            notes.mark_changed();
        }
        routes.followed.insert(token.clone(), sender);
        FollowedProgress { routes: self.clone(), token: token.clone(), notes, is_told: false, free_at: None }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressTokens> {
        self.0.lock().expect("the lock of progress")
    }
}

/// Takes a note that is further than the one that is kept.
fn advance(kept: &mut Option<ProgressNote>, note: ProgressNote) -> bool {
    let is_further = kept.as_ref().is_none_or(|kept| note.progress > kept.progress);
    if is_further {
        *kept = Some(note);
    }
    is_further
}

/// The progress of one call.
pub struct FollowedProgress {
    routes: ProgressRoutes,
    token: ProgressToken,
    notes: watch::Receiver<Option<ProgressNote>>,
    /// A note was given away; the pace counts from the next question on, when it was told.
    is_told: bool,
    free_at: Option<Instant>,
}

impl FollowedProgress {
    /// The latest note, once there is a new one and the pace allows it; else it never comes. Safe to drop and call
    /// again.
    pub async fn next(&mut self) -> ProgressNote {
        if take(&mut self.is_told) {
            self.free_at = Some(Instant::now() + PACE);
        }
        if let Some(free_at) = self.free_at {
            let left = free_at.saturating_duration_since(Instant::now());
            if left > Duration::ZERO {
                pause(left).await;
            }
            self.free_at = None;
        }
        loop {
            if self.notes.changed().await.is_err() {
                return pending().await;
            }
            let latest = self.notes.borrow_and_update().clone();
            if let Some(latest) = latest {
                self.is_told = true;
                return latest;
            }
        }
    }
}

impl Drop for FollowedProgress {
    fn drop(&mut self) {
        self.routes.lock().followed.remove(&self.token);
    }
}

/// Where the progress of a call is told, without the secrets that are known.
#[derive(Clone, Default)]
pub struct ProgressTeller {
    /// The listener.
    pub to: ToolProgress,
    /// The secrets that are taken out of each message.
    pub used_secrets: UsedSecrets,
}

impl ProgressTeller {
    /// Tells a note of the server.
    pub async fn tell(&self, note: ProgressNote) {
        // before it is cut: half a secret would be known by nobody
        let message = match note.message {
            Some(message) => Some(self.used_secrets.cleaned(message).await),
            None => None,
        };
        self.to.tell(ProgressNote { message, ..note });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::ports::tool::progress::MESSAGE_CHARS;

    fn token(number: i64) -> ProgressToken {
        ProgressToken(NumberOrString::Number(number))
    }

    fn note(progress: f64) -> ProgressNote {
        ProgressNote { progress, total: None, message: None }
    }

    fn put(routes: &ProgressRoutes, number: i64, progress: f64) {
        routes.put(ProgressNotificationParam::new(token(number), progress));
    }

    #[tokio::test]
    async fn note_goes_to_its_call_and_one_that_is_no_further_to_none() {
        let routes = ProgressRoutes::default();
        let (mut one, mut two) = (routes.follow(&token(1)), routes.follow(&token(2)));
        for progress in [f64::NAN, 2.0, 1.0, 2.0, f64::INFINITY] {
            put(&routes, 1, progress);
        }
        assert_eq!(one.next().await, note(2.0));
        assert!(two.next().now_or_never().is_none());
        put(&routes, 1, 1.5);
        pause(PACE).await;
        assert!(one.next().now_or_never().is_none());
        pause(PACE).await;
        assert!(one.next().now_or_never().is_none(), "it is behind the one that was told");
    }

    #[tokio::test]
    async fn latest_note_is_told_in_the_pace_though_the_question_is_dropped_and_put_again() {
        let routes = ProgressRoutes::default();
        let mut followed = routes.follow(&token(1));
        put(&routes, 1, 1.0);
        assert_eq!(followed.next().now_or_never(), Some(note(1.0)), "the first one at once");
        let begun = Instant::now();
        for progress in [2.0, 3.0] {
            put(&routes, 1, progress);
            assert!(followed.next().now_or_never().is_none());
        }
        assert_eq!(followed.next().await, note(3.0));
        assert!(begun.elapsed() >= PACE, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn note_that_comes_before_its_call_is_followed_lies_ready() {
        let routes = ProgressRoutes::default();
        put(&routes, 1, 2.0);
        put(&routes, 1, 1.0);
        let mut early = routes.follow(&token(1));
        assert_eq!(early.next().now_or_never(), Some(note(2.0)));
        routes.put(ProgressNotificationParam::new(ProgressToken(NumberOrString::String("x".into())), 1.0));
        for number in 2..100 {
            put(&routes, number, 1.0);
        }
        assert_eq!(routes.lock().early.len(), EARLY.get(), "of so many calls, whoever names them");
        assert!(routes.follow(&token(2)).next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn call_that_has_ended_leaves_nothing_behind() {
        let routes = ProgressRoutes::default();
        let mut followed = routes.follow(&token(1));
        assert_eq!(routes.lock().followed.len(), 1);
        routes.lock().followed.clear();
        assert!(followed.next().now_or_never().is_none(), "a route that is gone tells nothing");
        drop(followed);
        drop(routes.follow(&token(2)));
        assert_eq!(routes.lock().followed.len(), 0);
    }

    #[tokio::test]
    async fn message_is_read_at_its_longest_and_left_out_beyond_it() {
        let routes = ProgressRoutes::default();
        for (number, bytes) in [(1, READ_BYTES), (2, READ_BYTES + 1)] {
            let mut followed = routes.follow(&token(number));
            let params = ProgressNotificationParam::new(token(number), 1.0).with_message("x".repeat(bytes));
            routes.put(params);
            let message = followed.next().await.message;
            assert_eq!(message.map(|message| message.len()), (bytes == READ_BYTES).then_some(bytes));
        }
    }

    #[tokio::test]
    async fn secret_is_taken_out_of_a_message_before_it_is_cut() {
        let heard: Arc<Mutex<Vec<ProgressNote>>> = Arc::default();
        let listener = Arc::clone(&heard);
        let to = ToolProgress::to(move |note| listener.lock().unwrap().push(note));
        let progress = ProgressTeller { to, used_secrets: UsedSecrets::default() };
        progress.used_secrets.add(["canary-8-of-the-server"]);
        let message = format!("{} canary-8-of-the-server\nand on", "x".repeat(MESSAGE_CHARS - 10));
        progress.tell(ProgressNote { message: Some(message), ..note(1.0) }).await;
        let told = heard.lock().unwrap().remove(0).message.unwrap();
        assert!(!told.contains("canary") && told.chars().count() <= MESSAGE_CHARS, "{told}");
    }
}
