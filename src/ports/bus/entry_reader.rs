//! Reads entries as events, away from the threads that serve: an event has up to 256 KiB, and many are read at once.

use crate::base::compute::{Compute, steps_to_parse};
use crate::ports::bus::BusError;

/// Bytes of entries after which a piece ends: between two pieces others have their turn.
const PIECE: usize = 256 * 1_024;

/// The threads on which long entries are read. Cheap to clone; by default entries are read where that is asked for.
#[derive(Clone, Default)]
pub struct EntryReader(Option<Compute>);

impl EntryReader {
    /// A reader with these threads.
    pub fn new(compute: &Compute) -> EntryReader {
        EntryReader(Some(compute.clone()))
    }

    /// The results of `read` on entries, in their order. Where the entries are long together they are read in pieces,
    /// each in the turn of this name.
    pub async fn read<R: Send + 'static, T: Send + 'static>(
        &self,
        name: &str,
        entries: Vec<R>,
        length: fn(&R) -> usize,
        read: impl Fn(R) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, BusError> {
        let Some(compute) = &self.0 else { return Ok(entries.into_iter().map(read).collect()) };
        let mut results = Vec::with_capacity(entries.len());
        let mut entries = entries.into_iter();
        loop {
            let (piece, bytes) = next_piece(&mut entries, length);
            if piece.is_empty() {
                return Ok(results);
            }
            let read = read.clone();
            let work = move || piece.into_iter().map(read).collect::<Vec<T>>();
            let computed = compute.run_if_costly(name, steps_to_parse(bytes), work).await;
            results.extend(computed.map_err(|panicked| BusError::Corrupt { why: panicked.to_string() })?);
        }
    }

    /// The result of `read` on one entry.
    pub async fn read_one<R: Send + 'static, T: Send + 'static>(
        &self,
        name: &str,
        entry: R,
        length: fn(&R) -> usize,
        read: impl Fn(R) -> T + Clone + Send + 'static,
    ) -> Result<T, BusError> {
        let mut results = self.read(name, vec![entry], length, read).await?;
        results.pop().ok_or_else(|| BusError::Corrupt { why: "an entry was not read".into() })
    }
}

/// The next entries, and how many bytes they have.
fn next_piece<R>(entries: &mut impl Iterator<Item = R>, length: fn(&R) -> usize) -> (Vec<R>, usize) {
    let (mut piece, mut bytes) = (Vec::new(), 0);
    while bytes < PIECE
        && let Some(entry) = entries.next()
    {
        bytes += length(&entry);
        piece.push(entry);
    }
    (piece, bytes)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::base::compute::JSON_IN_PLACE;

    #[tokio::test]
    async fn entries_are_read_in_their_order_in_place_up_to_a_bound_and_in_pieces_beyond_it() {
        let here = thread::current().id();
        let read = |text: String| (text.len(), thread::current().id());
        let of = async |reader: &EntryReader, lengths: &[usize]| {
            let entries: Vec<String> = lengths.iter().map(|length| "x".repeat(*length)).collect();
            let results = reader.read("ann", entries, String::len, read).await.unwrap();
            assert_eq!(results.iter().map(|(length, _)| *length).collect::<Vec<_>>(), lengths);
            results.into_iter().map(|(_, thread)| thread == here).collect::<Vec<_>>()
        };
        let aside = EntryReader::new(&Compute::new(1));
        assert_eq!(of(&aside, &[]).await, [true; 0]);
        assert_eq!(of(&aside, &[JSON_IN_PLACE - 1, 1]).await, [true, true]);
        assert_eq!(of(&aside, &[JSON_IN_PLACE, 1]).await, [false, false]);
        assert_eq!(of(&aside, &[PIECE, 1, JSON_IN_PLACE - 1]).await, [false, true, true], "the second piece is short");
        assert_eq!(of(&EntryReader::default(), &[PIECE, 1]).await, [true, true]);
        let (_, thread) = aside.read_one("ann", "x".repeat(PIECE), String::len, read).await.unwrap();
        assert_ne!(thread, here);
    }
}
