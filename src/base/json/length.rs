//! How long values are as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

/// Bytes that each value of a tree is estimated at, beside its text.
const EACH_VALUE: usize = 8;

/// Whether a value has more bytes than this as JSON; looks no further than that.
pub fn is_longer_than<T: Serialize + ?Sized>(value: &T, most: usize) -> bool {
    struct BoundedCounter(usize);
    impl Write for BoundedCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    serde_json::to_writer(BoundedCounter(most), value).is_err_and(|error| error.is_io())
}

/// How many bytes a value has as JSON, without writing it anywhere.
pub fn bytes_of<T: Serialize + ?Sized>(value: &T) -> usize {
    struct LengthCounter(usize);
    impl Write for LengthCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = LengthCounter(0);
    // what can't be written is refused where it is stored
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// About how many bytes a value has as JSON, by the lengths of its texts and the number of its parts: no text is looked
/// at. Of a value that has more than `most` no more is looked at, and the answer is more than `most`.
pub fn estimated_bytes(value: &Value, most: usize) -> usize {
    fn add(value: &Value, mut sum: usize, most: usize) -> usize {
        sum += EACH_VALUE;
        match value {
            Value::String(text) => sum += text.len(),
            Value::Array(items) => {
                let mut items = items.iter();
                while sum <= most
                    && let Some(item) = items.next()
                {
                    sum = add(item, sum, most);
                }
            }
            Value::Object(fields) => {
                let mut fields = fields.iter();
                while sum <= most
                    && let Some((name, field)) = fields.next()
                {
                    sum = add(field, sum + name.len(), most);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        sum
    }
    add(value, 0, most)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn estimate_goes_by_texts_and_parts_and_ends_where_it_is_more_than_asked_for() {
        let text = |bytes: usize| json!("x".repeat(bytes - EACH_VALUE));
        assert_eq!(estimated_bytes(&text(100), 100), 100);
        assert_eq!(estimated_bytes(&json!({ "name": [1, null, "ab"] }), 1_000), 5 * EACH_VALUE + "nameab".len());
        let many: Value = (0..1_000).map(|_| text(100)).collect();
        assert_eq!(estimated_bytes(&many, usize::MAX), 100_000 + EACH_VALUE);
        let looked_at = estimated_bytes(&many, 1_000);
        assert!((1_001..=1_100).contains(&looked_at), "{looked_at}");
        let deep = json!([many, many]);
        assert!(estimated_bytes(&deep, 1_000) <= 1_200);
    }
}
