//! A fair queue for places that few can have at once: a writer, a thread, a connection.
//!
//! A free place is given to the user that waits and has used the places for the least time. So a user that comes seldom
//! waits for what is under way, and for nobody's backlog; users that always want more have equal shares of the time.
//! (Start-time fair queueing: P. Goyal, H. Vin, H. Cheng, 1996.)
//!
//! Some places may be reserved for users that have none: then a user that comes seldom does not even wait for what is
//! under way, unless as many others came as there are reserved places.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::oneshot;

/// Users that are remembered at least before those are forgotten that are owed nothing.
const REMEMBERED: usize = 256;

/// Seconds that a turn is waited for.
const WAIT_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// A number of places, shared by users that are known by keys. Cheap to clone; all clones share the places.
pub struct FairQueue<K: Ord + Hash + Clone>(Arc<Shared<K>>);

/// A place that somebody has, until this is dropped.
pub struct QueuePermit<K: Ord + Hash + Clone> {
    shared: Arc<Shared<K>>,
    user: K,
    since: Instant,
}

struct Shared<K: Ord + Hash + Clone> {
    places: usize,
    reserved: usize,
    waits: Histogram,
    queue: Mutex<Queue<K, oneshot::Sender<QueuePermit<K>>>>,
}

/// The users that wait, in the order in which they are served. `W` is how one that waits is told.
struct Queue<K, W> {
    free: usize,
    /// A user that has a place takes none of the last so many.
    reserved: usize,
    /// The time that the one served last had used when its turn began: a user that comes anew begins there.
    level: Duration,
    users: HashMap<K, User<W>>,
    /// As soon as so many users are known, those are forgotten that are owed nothing.
    sweep_at: usize,
    order: BTreeSet<QueuePosition<K>>,
    arrivals: u64,
}

/// Where a user waits: by the time that it has used, by its rank, and by its arrival.
type QueuePosition<K> = (Duration, Rank, u64, K);

/// Which of those comes first that have used the places for the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// All wait for it.
    First,
    Anew,
    /// It has had, or has, a turn.
    Again,
}

struct User<W> {
    used: Duration,
    /// Places that it has now.
    having: usize,
    waiting: VecDeque<W>,
    /// Of use while it waits.
    rank: Rank,
    arrival: u64,
}

impl<W> User<W> {
    fn position<K: Clone>(&self, key: &K) -> QueuePosition<K> {
        (self.used, self.rank, self.arrival, key.clone())
    }
}

impl<K: Ord + Hash + Clone> Clone for FairQueue<K> {
    fn clone(&self) -> FairQueue<K> {
        FairQueue(Arc::clone(&self.0))
    }
}

impl<K: Ord + Hash + Clone> FairQueue<K> {
    /// With so many places; one at least.
    pub fn new(places: usize) -> FairQueue<K> {
        FairQueue::with_reserve(places, 0)
    }

    /// With so many places, of which so many are for users that have none; one at least is for everybody.
    pub fn with_reserve(places: usize, reserved: usize) -> FairQueue<K> {
        let places = places.max(1);
        let reserved = reserved.min(places - 1);
        let waits = Histogram::new(WAIT_BUCKETS);
        FairQueue(Arc::new(Shared { places, reserved, waits, queue: Mutex::new(Queue::new(places, reserved)) }))
    }

    /// A place, once it is the user's turn. Dropping the future before gives the turn to the next.
    pub async fn acquire<Q>(&self, user: &Q) -> QueuePermit<K>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_as(user, false).await
    }

    /// A place before all others that wait, for work that all of them wait for. What the user asks for while it waits
    /// has its turn as any other's.
    pub async fn acquire_first<Q>(&self, user: &Q) -> QueuePermit<K>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_as(user, true).await
    }

    /// A place, if the user may have one at once.
    pub fn try_acquire<Q>(&self, user: &Q) -> Option<QueuePermit<K>>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let begins = self.0.lock().try_begin(user);
        begins.then(|| QueuePermit::permit(&self.0, user.to_owned()))
    }

    async fn acquire_as<Q>(&self, user: &Q, first: bool) -> QueuePermit<K>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let turn = {
            let mut queue = self.0.lock();
            if queue.try_begin(user) {
                return QueuePermit::permit(&self.0, user.to_owned());
            }
            let (sender, receiver) = oneshot::channel();
            queue.wait(user, sender, first);
            receiver
        };
        let asked = Instant::now();
        // the queue holds the other end until it sends the turn
        let permit = turn.await.expect("a queue that outlives those that wait in it");
        self.0.waits.observe(asked.elapsed().as_secs_f64());
        permit
    }

    /// Number of places in all.
    pub fn slots(&self) -> usize {
        self.0.places
    }

    /// Places that one user may have at once.
    pub fn slots_per_user(&self) -> usize {
        self.0.places - self.0.reserved
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        let still = |user: &User<oneshot::Sender<_>>| user.waiting.iter().filter(|turn| !turn.is_closed()).count();
        self.0.lock().users.values().map(still).sum()
    }

    /// For how long turns were waited for, in seconds; a turn that was had at once is not in it.
    pub fn waits(&self) -> Histogram {
        self.0.waits.clone()
    }
}

impl<K: Ord + Hash + Clone> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, Queue<K, oneshot::Sender<QueuePermit<K>>>> {
        self.queue.lock().expect("turns lock")
    }
}

impl<K: Ord + Hash + Clone> QueuePermit<K> {
    fn permit(shared: &Arc<Shared<K>>, user: K) -> QueuePermit<K> {
        QueuePermit { shared: Arc::clone(shared), user, since: Instant::now() }
    }
}

impl<K: Ord + Hash + Clone> Drop for QueuePermit<K> {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.shared.lock();
            queue.end(&self.user, self.since.elapsed());
            queue.admit(oneshot::Sender::is_closed)
        };
        // a turn that nobody takes any more is dropped here, and so given to the one after
        if let Some((user, next)) = next {
            let _ = next.send(QueuePermit::permit(&self.shared, user));
        }
    }
}

impl<K: Ord + Hash + Clone, W> Queue<K, W> {
    fn new(free: usize, reserved: usize) -> Queue<K, W> {
        Queue {
            free,
            reserved,
            level: Duration::ZERO,
            users: HashMap::new(),
            sweep_at: REMEMBERED,
            order: BTreeSet::new(),
            arrivals: 0,
        }
    }

    /// Gives a place that is free.
    fn try_begin<Q>(&mut self, user: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let having = self.users.get(user).map_or(0, |user| user.having);
        if !self.may_begin(having) {
            return false;
        }
        self.free -= 1;
        let level = self.level;
        let user = self.user(user);
        user.having += 1;
        let used = user.used;
        self.level = level.max(used);
        true
    }

    fn wait<Q>(&mut self, key: &Q, waits: W, first: bool)
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let user = self.user(key);
        user.waiting.push_back(waits);
        if user.waiting.len() == 1 {
            user.arrival = arrival;
            user.rank = if user.having > 0 { Rank::Again } else { Rank::Anew };
            if first {
                (user.used, user.rank) = (Duration::ZERO, Rank::First);
            }
            let place = user.position(&key.to_owned());
            self.order.insert(place);
        }
    }

    /// The user, which has used as much as the present level at least.
    fn user<Q>(&mut self, key: &Q) -> &mut User<W>
    where
        K: Borrow<Q>,
        Q: Ord + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let level = self.level;
        if !self.users.contains_key(key) {
            if self.users.len() >= self.sweep_at {
                self.users.retain(|_, user| user.having > 0 || !user.waiting.is_empty() || user.used > level);
                self.sweep_at = REMEMBERED.max(2 * self.users.len());
            }
            let user = User { used: level, having: 0, waiting: VecDeque::new(), rank: Rank::Anew, arrival: 0 };
            self.users.insert(key.to_owned(), user);
        }
        let user = self.users.get_mut(key).expect("a user that was put in");
        if user.waiting.is_empty() {
            user.used = user.used.max(level);
        }
        user
    }

    /// Whether a user that has so many places may have another of those that are free.
    fn may_begin(&self, having: usize) -> bool {
        let kept = if having == 0 { 0 } else { self.reserved };
        self.free > kept
    }

    /// Ends a turn that took so long.
    fn end(&mut self, key: &K, took: Duration) {
        self.free += 1;
        if let Some(user) = self.users.get_mut(key) {
            let waits = self.order.remove(&user.position(key));
            user.used += took;
            user.having -= 1;
            if waits {
                self.order.insert(user.position(key));
            }
        }
    }

    /// Gives a free place to the next that waits and may have it; those that are `gone` are left out. To be asked once
    /// after each end: no more than one may have what was refused before.
    fn admit(&mut self, gone: impl Fn(&W) -> bool) -> Option<(K, W)> {
        while let Some(place) = self.next() {
            self.order.remove(&place);
            let (used, .., key) = place;
            let Some(user) = self.users.get_mut(&key) else { continue };
            while user.waiting.front().is_some_and(&gone) {
                user.waiting.pop_front();
            }
            let Some(next) = user.waiting.pop_front() else { continue };
            self.free -= 1;
            user.having += 1;
            self.level = self.level.max(used);
            if !user.waiting.is_empty() {
                self.arrivals += 1;
                user.used = user.used.max(self.level);
                (user.rank, user.arrival) = (Rank::Again, self.arrivals);
                self.order.insert(user.position(&key));
            }
            return Some((key, next));
        }
        None
    }

    /// The first of those that wait and may have a place. No more are passed over than there are places: they have
    /// some.
    fn next(&self) -> Option<QueuePosition<K>> {
        let having = |key: &K| self.users.get(key).map_or(0, |user| user.having);
        self.order.iter().find(|(.., key)| self.may_begin(having(key))).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Ends a turn, and answers the one that is next.
    fn end(queue: &mut Queue<String, u32>, user: &str, took: Duration) -> Option<(String, u32)> {
        queue.end(&user.to_owned(), took);
        queue.admit(|_| false)
    }

    /// Serves until nobody waits; each turn takes as long as its user says.
    fn serve(queue: &mut Queue<String, u32>, first: &str, took: impl Fn(&str) -> Duration) -> Vec<(String, u32)> {
        let (mut served, mut now) = (Vec::new(), first.to_owned());
        while let Some((user, number)) = end(queue, &now, took(&now)) {
            served.push((user.clone(), number));
            now = user;
        }
        served
    }

    #[test]
    fn user_that_comes_seldom_waits_for_the_present_turn_and_for_no_backlog() {
        let mut queue: Queue<String, u32> = Queue::new(1, 0);
        assert!(queue.try_begin("loud"));
        for number in 0..100 {
            queue.wait("loud", number, false);
            queue.wait("loud too", number, false);
        }
        let mut now = "loud".to_owned();
        for number in 0..20 {
            let (user, _) = end(&mut queue, &now, 7 * MS).unwrap();
            queue.wait("quiet", number, false);
            let next = end(&mut queue, &user, 7 * MS).unwrap();
            assert_eq!(next, ("quiet".to_owned(), number));
            now = next.0;
            let (user, _) = end(&mut queue, &now, MS).unwrap();
            now = user;
        }
    }

    #[test]
    fn users_that_want_more_share_the_time_and_not_the_number_of_turns() {
        let mut queue: Queue<String, u32> = Queue::new(1, 0);
        assert!(queue.try_begin("first"));
        for number in 0..400 {
            queue.wait("long", number, false);
            queue.wait("short", number, false);
        }
        let served = serve(&mut queue, "first", |user| if user == "long" { 10 * MS } else { MS });
        let long = served[..220].iter().filter(|(user, _)| user == "long").count();
        assert!((19..=21).contains(&long), "{long} of 220 turns, which take as long as the other 200");
        assert_eq!(served.len(), 800);
    }

    #[test]
    fn user_that_was_away_has_saved_nothing_up_and_its_own_order_is_kept() {
        let mut queue: Queue<String, u32> = Queue::new(1, 0);
        assert!(queue.try_begin("busy"));
        queue.wait("busy", 0, false);
        assert!(end(&mut queue, "busy", 1000 * MS).is_some());
        for number in 1..5 {
            queue.wait("busy", number, false);
        }
        for number in 0..5 {
            queue.wait("late", number, false);
        }
        let served = serve(&mut queue, "busy", |_| MS);
        let late: Vec<u32> = served.iter().filter(|(user, _)| user == "late").map(|(_, number)| *number).collect();
        assert_eq!(late, [0, 1, 2, 3, 4]);
        let first: Vec<&str> = served[..4].iter().map(|(user, _)| user.as_str()).collect();
        assert_eq!(first, ["late", "busy", "late", "busy"], "from the level of those that were served meanwhile");
    }

    #[test]
    fn work_that_all_wait_for_goes_first_and_its_next_has_its_turn() {
        let mut queue: Queue<String, u32> = Queue::new(1, 0);
        assert!(queue.try_begin("busy"));
        queue.wait("busy", 0, false);
        queue.wait("other", 0, false);
        queue.wait("engine", 0, true);
        queue.wait("engine", 1, true);
        let served = serve(&mut queue, "busy", |_| MS);
        let order: Vec<&str> = served.iter().map(|(user, _)| user.as_str()).collect();
        assert_eq!(order, ["engine", "other", "busy", "engine"]);
    }

    #[test]
    fn reserved_places_are_for_users_that_have_none() {
        let mut queue: Queue<String, u32> = Queue::new(4, 1);
        assert!(["loud", "loud", "loud"].into_iter().all(|user| queue.try_begin(user)));
        assert!(!queue.try_begin("loud"), "the last place is not for a user that has one");
        queue.wait("loud", 0, false);
        assert!(queue.try_begin("quiet"));
        assert!(!queue.try_begin("late"));
        queue.wait("late", 0, false);
        assert_eq!(end(&mut queue, "loud", MS), Some(("late".to_owned(), 0)), "though it has waited for less long");
        assert_eq!(end(&mut queue, "quiet", MS), None, "the place that is free is reserved");
        assert_eq!(end(&mut queue, "late", MS), Some(("loud".to_owned(), 0)));
        assert_eq!(queue.free, 1);
    }

    #[test]
    fn user_that_gave_its_only_place_back_may_have_a_reserved_one() {
        let mut queue: Queue<String, u32> = Queue::new(2, 1);
        assert!(queue.try_begin("a"));
        queue.wait("a", 0, false);
        assert_eq!(queue.admit(|_| false), None);
        assert_eq!(end(&mut queue, "a", MS), Some(("a".to_owned(), 0)));
    }

    #[test]
    fn users_that_are_owed_nothing_are_forgotten() {
        let mut queue: Queue<String, u32> = Queue::new(1, 0);
        for user in 0..10 * REMEMBERED {
            let user = user.to_string();
            assert!(queue.try_begin(user.as_str()));
            assert!(end(&mut queue, &user, Duration::ZERO).is_none());
        }
        assert!(queue.users.len() <= REMEMBERED, "{}", queue.users.len());
    }

    #[tokio::test]
    async fn turn_that_nobody_waits_for_any_more_goes_to_the_next() {
        let turns: FairQueue<String> = FairQueue::new(1);
        let held = turns.acquire("a").await;
        {
            let mut left = pin!(turns.acquire("b"));
            assert!((&mut left).now_or_never().is_none());
            assert_eq!(turns.waiting(), 1);
        }
        assert_eq!(turns.waiting(), 0, "it has left");
        let mut next = pin!(turns.acquire("c"));
        assert!((&mut next).now_or_never().is_none());
        drop(held);
        assert!(next.await.user == "c");
        assert_eq!(turns.0.lock().free, 1);
    }
}
