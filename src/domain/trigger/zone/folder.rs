//! A zoneinfo folder: which release it holds, and the file of a zone. Reads are bounded in bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::release::ZoneRelease;

/// The longest file of a zone; the longest there is has 4 KB.
pub const LONGEST: u64 = 64 * 1024;
/// More than the first line of `tzdata.zi` has.
const FIRST_LINE: u64 = 256;

/// The release of a folder, by the first line of its `tzdata.zi` or by its `+VERSION`; `None` where it has neither, so
/// that nobody knows what it is.
pub fn release(dir: &Path) -> Option<ZoneRelease> {
    let first_line = |name: &str| {
        let bytes = read(&dir.join(name), FIRST_LINE, false).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.lines().next().map(|line| line.trim().to_owned())
    };
    let named = first_line("tzdata.zi").and_then(|line| ZoneRelease::parse(line.strip_prefix("# version ")?.trim()));
    named.or_else(|| first_line("+VERSION").and_then(|line| ZoneRelease::parse(&line)))
}

/// The file of a zone, by its IANA name.
pub fn tzif(dir: &Path, name: &str) -> Result<Vec<u8>, String> {
    read(&dir.join(name), LONGEST, true)
}

/// A file, or its beginning; one that is no plain file could keep its reader for ever.
fn read(path: &Path, most: u64, whole: bool) -> Result<Vec<u8>, String> {
    if !std::fs::metadata(path).map_err(|error| error.to_string())?.is_file() {
        return Err("it is no plain file".into());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        if whole {
            return Err(format!("it is longer than {most} bytes"));
        }
        bytes.truncate(most as usize);
    }
    Ok(bytes)
}
