//! How long values are as JSON.

use std::io::{self, Write};

use serde::Serialize;

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
