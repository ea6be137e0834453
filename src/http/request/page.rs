//! Pages of a list: `limit` and an opaque `cursor` in, `items` and `next_cursor` out.
//!
//! Lists are newest first, by id. The cursor names the last item seen, so that what is added or removed meanwhile
//! neither doubles nor hides another item.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use uuid::Uuid;

use crate::http::request::Query;
use crate::store::RowPage;

/// Items on a page where no `limit` is given.
pub const LIMIT: usize = 50;
/// The largest `limit`.
pub const MOST: usize = 200;

/// Which part of a list is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPage {
    /// Items that are answered at most.
    pub limit: usize,
    /// The last item that was seen.
    pub before: Option<Uuid>,
}

/// One page of a list, as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Items<T> {
    /// Things of this page.
    pub items: Vec<T>,
    /// For the next page; `null` on the last alone, however few items a page has.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// The page that is asked for of a list that grows at its end, and is read from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardPage {
    limit: usize,
    /// The number of the first item.
    pub from: i64,
}

/// Which part of a list is asked for that is in the order of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePage {
    limit: usize,
    /// The last name that was seen.
    pub after: Option<String>,
}

impl ListPage {
    /// Reads `limit` and `cursor`.
    pub fn of(query: &mut Query) -> ListPage {
        let before = query.read("cursor", decode, CURSOR).map(Uuid::from_u128);
        ListPage { limit: limit(query), before }
    }

    /// Number of rows to ask of the store: one more than is answered, to know whether there is more.
    pub fn fetch(&self) -> i64 {
        self.limit as i64 + 1
    }

    /// For a page that is bounded in bytes: it may end early, and goes on behind its last item, or behind those that
    /// were left out.
    pub fn within<T>(&self, found: RowPage<T>, id: impl Fn(&T) -> Uuid) -> Items<T> {
        let RowPage { rows, is_cut, behind } = found;
        let cut = rows.last().filter(|_| is_cut && rows.len() <= self.limit).map(&id);
        let page = self.items(rows, id);
        let behind = behind.or(cut).map(|last| encode(last.as_u128()));
        Items { next_cursor: page.next_cursor.or(behind), ..page }
    }

    /// The page out of what the store answered to [`ListPage::fetch`].
    pub fn items<T>(&self, mut found: Vec<T>, id: impl Fn(&T) -> Uuid) -> Items<T> {
        let more = found.len() > self.limit;
        found.truncate(self.limit);
        let next_cursor = found.last().filter(|_| more).map(|last| encode(id(last).as_u128()));
        Items { items: found, next_cursor }
    }
}

impl<T> Items<T> {
    /// The page with each item turned into another.
    pub fn map<U>(self, turn: impl FnMut(T) -> U) -> Items<U> {
        Items { items: self.items.into_iter().map(turn).collect(), next_cursor: self.next_cursor }
    }

    /// A list that is always answered whole.
    pub fn whole(items: Vec<T>) -> Items<T> {
        Items { items, next_cursor: None }
    }
}

impl ForwardPage {
    /// Reads `limit` and `cursor`.
    pub fn of(query: &mut Query) -> ForwardPage {
        let from = query.read("cursor", |cursor| i64::try_from(decode(cursor)?).ok(), CURSOR);
        ForwardPage { limit: limit(query), from: from.unwrap_or(0) }
    }

    /// The cursor of a page that begins with the item of this number.
    pub fn cursor(from: u32) -> String {
        encode(u128::from(from))
    }

    /// Number of rows to ask of the store: one more than is answered.
    pub fn fetch(&self) -> i64 {
        self.limit as i64 + 1
    }

    /// The page out of what the store answered to [`ForwardPage::fetch`]; one that is cut goes on behind its last item.
    pub fn items<T>(&self, found: RowPage<T>, number: impl Fn(&T) -> i64) -> Items<T> {
        let RowPage { rows: mut found, is_cut, .. } = found;
        let behind = found.last().filter(|_| is_cut).map(|last| number(last) + 1);
        let next = found.get(self.limit).map(&number).or(behind);
        found.truncate(self.limit);
        Items { items: found, next_cursor: next.and_then(|next| u128::try_from(next).ok()).map(encode) }
    }
}

impl NamePage {
    /// Reads `limit` and `cursor`.
    pub fn of(query: &mut Query) -> NamePage {
        let name = |cursor: &str| String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).ok()?).ok();
        NamePage { after: query.read("cursor", name, CURSOR), limit: limit(query) }
    }

    /// Number of rows to ask of the store: one more than is answered.
    pub fn fetch(&self) -> i64 {
        self.limit as i64 + 1
    }

    /// The page out of what the store answered to [`NamePage::fetch`]; one that is cut goes on behind its last item.
    pub fn items<T>(&self, found: RowPage<T>, name: impl Fn(&T) -> &str) -> Items<T> {
        let RowPage { rows: mut found, is_cut, .. } = found;
        let more = is_cut || found.len() > self.limit;
        found.truncate(self.limit);
        let next_cursor = found.last().filter(|_| more).map(|last| URL_SAFE_NO_PAD.encode(name(last)));
        Items { items: found, next_cursor }
    }
}

const CURSOR: &str = "the next_cursor of an earlier answer";

/// Reads `limit`.
pub fn limit(query: &mut Query) -> usize {
    let limit = |text: &str| text.parse().ok().filter(|n| (1..=MOST).contains(n));
    query.read("limit", limit, "from 1 to 200").unwrap_or(LIMIT)
}

/// Opaque, so that nobody builds on what is in it.
fn encode(place: u128) -> String {
    URL_SAFE_NO_PAD.encode(place.to_be_bytes())
}

/// The cursor behind which a list goes on with what is older than an id.
pub fn cursor_at(id: Uuid) -> String {
    encode(id.as_u128())
}

fn decode(cursor: &str) -> Option<u128> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    Some(u128::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T>(rows: Vec<T>, is_cut: bool) -> RowPage<T> {
        RowPage { rows, is_cut, behind: None }
    }

    #[test]
    fn cursor_leads_to_what_follows_and_the_last_page_has_none() {
        let ids: Vec<Uuid> = (0..3).map(Uuid::from_u128).collect();
        let page = ListPage::of(&mut Query::parse("limit=2"));
        assert_eq!((page.limit, page.fetch(), page.before), (2, 3, None));
        let first = page.items(ids.clone(), |id| *id);
        assert_eq!(first.items, ids[..2]);
        let next = ListPage::of(&mut Query::parse(&format!("limit=2&cursor={}", first.next_cursor.unwrap())));
        assert_eq!(next.before, Some(ids[1]));
        assert_eq!(next.items(vec![ids[2]], |id| *id), Items { items: vec![ids[2]], next_cursor: None });
    }

    #[test]
    fn list_that_grows_is_read_onward() {
        let page = ForwardPage::of(&mut Query::parse("limit=2"));
        let first = page.items(of(vec![0, 1, 2], false), |seq| *seq);
        assert_eq!(first.items, [0, 1]);
        let next = ForwardPage::of(&mut Query::parse(&format!("cursor={}", first.next_cursor.unwrap())));
        assert_eq!(next.from, 2);
        assert_eq!(next.items(of(vec![2], false), |seq| *seq), Items { items: vec![2], next_cursor: None });
    }

    #[test]
    fn page_that_is_cut_goes_on_behind_its_last_item() {
        let ids: Vec<Uuid> = (0..3).map(Uuid::from_u128).collect();
        let page = ListPage::of(&mut Query::parse("limit=2"));
        let cut = page.within(of(ids[..1].to_vec(), true), |id| *id);
        let next = ListPage::of(&mut Query::parse(&format!("cursor={}", cut.next_cursor.unwrap())));
        assert_eq!(next.before, Some(ids[0]));
        // all that is shown fit, and only the one that tells of more did not
        let whole = page.within(of(ids[..2].to_vec(), true), |id| *id);
        assert_eq!(whole.items.len(), 2);
        assert!(whole.next_cursor.is_some());
        assert_eq!(page.within(of(ids[..2].to_vec(), false), |id| *id).next_cursor, None);
        let gap = |rows: Vec<Uuid>| RowPage { behind: Some(Uuid::from_u128(9)), ..of(rows, false) };
        for rows in [vec![], ids[..1].to_vec()] {
            let next = page.within(gap(rows), |id| *id).next_cursor.expect("there is more behind what was left out");
            assert_eq!(decode(&next), Some(9));
        }
        let onward = ForwardPage::of(&mut Query::parse("limit=5"));
        let cut = onward.items(of(vec![0, 1], true), |seq| *seq);
        assert_eq!(ForwardPage::of(&mut Query::parse(&format!("cursor={}", cut.next_cursor.unwrap()))).from, 2);
    }

    #[test]
    fn list_of_names_goes_on_behind_the_last_that_was_shown() {
        let page = NamePage::of(&mut Query::parse("limit=2"));
        let first = page.items(of(vec!["a", "ü/ b", "c"], false), |name| name);
        assert_eq!(first.items, ["a", "ü/ b"]);
        let next = NamePage::of(&mut Query::parse(&format!("limit=2&cursor={}", first.next_cursor.unwrap())));
        assert_eq!(next.after.as_deref(), Some("ü/ b"));
        assert_eq!(next.items(of(vec!["c"], false), |name| name).next_cursor, None);
        assert!(next.items(of(vec!["c"], true), |name| name).next_cursor.is_some());
    }

    #[test]
    fn limit_out_of_range_and_a_made_up_cursor_are_faults() {
        assert_eq!(ListPage::of(&mut Query::parse("limit=200")).limit, MOST);
        for query in ["limit=0", "limit=201", "limit=x", "cursor=abc", "cursor=%00"] {
            let mut query = Query::parse(query);
            ListPage::of(&mut query);
            assert!(query.done().is_err());
        }
    }
}
