//! How long values are as JSON.

use std::io::{self, Write};

use serde::Serialize;

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
