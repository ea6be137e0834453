//! Looks up the id of a thing: by its whole id, the beginning of it, or a key.

use uuid::Uuid;

use super::Client;
use crate::cli::CliFailure;
use crate::cli::screen::text_of;
use crate::http::request::page::cursor_at;

/// Newest things of a list among which one is looked for whose ids are not in the list's order.
const AMONG: usize = 1_000;

impl Client {
    /// The id that was meant: typed whole, by as much of its beginning as tells it from all others, or for a task by
    /// its key. `list` is the list that it is in, such as `tasks`.
    ///
    /// # Errors
    /// There is nothing like it, or more than one.
    pub async fn id(&self, list: &str, typed: &str) -> anyhow::Result<String> {
        let what = kind_in(list);
        let missing = || {
            CliFailure::new(format!("there is no {what} `{typed}`"))
                .hint(format!("`reveille {what} list` has their ids; the beginning of one is enough"))
        };
        Ok(self.id_if_found(list, typed).await?.ok_or_else(missing)?)
    }

    /// [`Client::id`], where there may be nothing like it.
    ///
    /// # Errors
    /// There is more than one, or the list can't be read.
    pub async fn id_if_found(&self, list: &str, typed: &str) -> anyhow::Result<Option<String>> {
        if Uuid::try_parse(typed).is_ok() {
            return Ok(Some(typed.to_owned()));
        }
        let mut found = Vec::new();
        if list == "tasks" {
            found = self.list(&["v1", list], &[("key", typed.to_owned())], 2).await?;
        }
        if let (true, Some(beginning)) = (found.is_empty(), IdBeginning::parse(typed)) {
            let page = self.page(&["v1", list], &[], 2, Some(cursor_at(beginning.upper_bound()))).await?;
            found = page.items.into_iter().filter(|item| beginning.is_prefix_of(&text_of(&item["id"]))).collect();
        }
        match found.as_slice() {
            [one] => Ok(Some(text_of(&one["id"]))),
            [] => Ok(None),
            _ => Err(more_than_one(kind_in(list), typed)),
        }
    }

    /// The open question of a run that was meant, by its id or by as much of its beginning as tells it from the others.
    ///
    /// # Errors
    /// There is nothing like it, or more than one.
    pub async fn open_input(&self, run: &str, typed: &str) -> anyhow::Result<String> {
        if Uuid::try_parse(typed).is_ok() {
            return Ok(typed.to_owned());
        }
        let mut found = Vec::new();
        if let Some(beginning) = IdBeginning::parse(typed) {
            let shown = self.get(&["v1", "runs", run], &[]).await?;
            found.extend(shown["inputs"].as_array().into_iter().flatten().map(|input| text_of(&input["id"])));
            found.retain(|id| beginning.is_prefix_of(id));
        }
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(CliFailure::new(format!("there is no open question `{typed}`"))
                .hint(format!("`reveille run answer {run}` has their ids; the beginning of one is enough"))
                .into()),
            _ => Err(more_than_one("open question", typed)),
        }
    }

    /// [`Client::id`] of a filter, where one was typed.
    pub async fn optional_id(&self, list: &str, typed: Option<&str>) -> anyhow::Result<Option<String>> {
        match typed {
            Some(typed) => Ok(Some(self.id(list, typed).await?)),
            None => Ok(None),
        }
    }

    /// The dead letter that was meant, by its id or by as much of its beginning as tells it from the newest others.
    pub async fn dead_letter(&self, typed: &str) -> anyhow::Result<String> {
        self.among_the_newest("dead-letters", "id", "dead letter", typed).await
    }

    /// The batch of approvals that was meant, where one was.
    pub async fn batch_if(&self, typed: Option<&str>) -> anyhow::Result<Option<String>> {
        match typed {
            Some(typed) => Ok(Some(self.among_the_newest("approvals", "batch_id", "batch", typed).await?)),
            None => Ok(None),
        }
    }

    async fn among_the_newest(&self, list: &str, field: &str, what: &str, typed: &str) -> anyhow::Result<String> {
        if is_full_id(typed) {
            return Ok(typed.to_owned());
        }
        let newest = self.list(&["v1", list], &[], AMONG).await?;
        let mut ids: Vec<String> = newest.iter().map(|item| text_of(&item[field])).collect();
        ids.retain(|id| !typed.is_empty() && id.starts_with(&typed.to_lowercase()));
        ids.sort();
        ids.dedup();
        match ids.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(CliFailure::new(format!("there is no {what} `{typed}` among the newest {AMONG}"))
                .hint("type the whole id of an older one")
                .into()),
            _ => Err(more_than_one(what, typed)),
        }
    }
}

/// Whether this is a whole id: one of ours, or of an entry in Redis.
fn is_full_id(typed: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let entry = typed.split_once('-').is_some_and(|(millis, count)| number(millis) && number(count));
    entry || Uuid::try_parse(typed).is_ok()
}

/// One thing of a list, in words.
fn kind_in(list: &str) -> &str {
    if list == "deliveries" { "delivery" } else { list.trim_end_matches('s') }
}

fn more_than_one(what: &str, typed: &str) -> anyhow::Error {
    CliFailure::new(format!("`{typed}` means more than one {what}")).hint("type more of the id").into()
}

/// The beginning of an id, as hexadecimal digits.
struct IdBeginning(String);

impl IdBeginning {
    /// Digits and hyphens, four digits at least.
    fn parse(typed: &str) -> Option<IdBeginning> {
        let digits: String = typed.chars().filter(|c| *c != '-').collect::<String>().to_lowercase();
        let fits = (4..=32).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit());
        fits.then_some(IdBeginning(digits))
    }

    /// The last id that begins so: lists go on below it, newest first.
    fn upper_bound(&self) -> Uuid {
        Uuid::try_parse(&format!("{:f<32}", self.0)).unwrap_or(Uuid::max())
    }

    fn is_prefix_of(&self, id: &str) -> bool {
        id.replace('-', "").starts_with(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_ids_are_not_looked_for() {
        assert!(is_full_id("01a1fbdb-14f8-7000-8000-400360e3b5a2") && is_full_id("1795238840865-0"));
        for part in ["", "1", "1795238840865", "1795238840865-", "01a1fbdb-14f8", "-0"] {
            assert!(!is_full_id(part), "{part}");
        }
    }
}
