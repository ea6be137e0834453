//! Readings of the next few bytes of a text: themselves, or the meaning of an escape in them.

/// At most so many readings begin at one place.
pub const MOST_READINGS: usize = 4;
/// Longest escape that is read, in bytes: a pair of surrogates in JSON within JSON within JSON within JSON.
const LONGEST: usize = 28;
/// The names of HTML for what ASCII has besides letters and digits.
const NAMED: [(&str, u8); 36] = [
    ("Tab", b'\t'),
    ("NewLine", b'\n'),
    ("excl", b'!'),
    ("quot", b'"'),
    ("QUOT", b'"'),
    ("num", b'#'),
    ("dollar", b'$'),
    ("percnt", b'%'),
    ("amp", b'&'),
    ("AMP", b'&'),
    ("apos", b'\''),
    ("lpar", b'('),
    ("rpar", b')'),
    ("ast", b'*'),
    ("plus", b'+'),
    ("comma", b','),
    ("period", b'.'),
    ("sol", b'/'),
    ("colon", b':'),
    ("semi", b';'),
    ("lt", b'<'),
    ("LT", b'<'),
    ("equals", b'='),
    ("gt", b'>'),
    ("GT", b'>'),
    ("quest", b'?'),
    ("commat", b'@'),
    ("lsqb", b'['),
    ("bsol", b'\\'),
    ("rsqb", b']'),
    ("Hat", b'^'),
    ("lowbar", b'_'),
    ("grave", b'`'),
    ("lcub", b'{'),
    ("verbar", b'|'),
    ("rcub", b'}'),
];

/// Reading of `length` bytes of the text: up to one character, or nothing.
#[derive(Clone, Copy)]
pub struct ByteReading {
    meant: [u8; 4],
    count: usize,
    pub length: usize,
}

impl ByteReading {
    /// A reading of nothing.
    pub const NONE: ByteReading = ByteReading { meant: [0; 4], count: 0, length: 0 };

    fn byte(byte: u8, length: usize) -> ByteReading {
        // line breaks are put into anything long
        let count = usize::from(!b"\r\n".contains(&byte));
        ByteReading { meant: [byte, 0, 0, 0], count, length }
    }

    fn character(c: char, length: usize) -> ByteReading {
        let mut meant = [0; 4];
        let count = c.encode_utf8(&mut meant).len();
        if count == 1 { ByteReading::byte(meant[0], length) } else { ByteReading { meant, count, length } }
    }

    /// The bytes that are meant.
    pub fn bytes(&self) -> &[u8] {
        &self.meant[..self.count]
    }

    /// Whether nothing is meant.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Writes what may be read at `at`, and answers how much that is.
pub fn readings(bytes: &[u8], at: usize, into: &mut [ByteReading; MOST_READINGS]) -> usize {
    let Some((first, rest)) = bytes.get(at..).and_then(|rest| rest.split_first()) else { return 0 };
    into[0] = ByteReading::byte(*first, 1);
    let rest = &rest[..rest.len().min(LONGEST)];
    let escaped = match first {
        b'%' => [hex(rest, 2).and_then(|code| Some(ByteReading::byte(u8::try_from(code).ok()?, 3))), None, None],
        b'+' => [Some(ByteReading::byte(b' ', 1)), None, None],
        b'\\' => [backslash(rest), nested(rest), rest.starts_with(b"\\\\\\").then(|| ByteReading::byte(b'\\', 4))],
        b'&' => [entity(rest), None, None],
        _ => [None; 3],
    };
    let mut count = 1;
    for reading in escaped.into_iter().flatten() {
        into[count] = reading;
        count += 1;
    }
    count
}

/// An escape of JSON that was escaped once more by each JSON around it, which doubles its backslashes.
fn nested(rest: &[u8]) -> Option<ByteReading> {
    let more = run(rest);
    let reading = (more > 0).then(|| backslash(&rest[more..])).flatten()?;
    Some(ByteReading { length: reading.length + more, ..reading })
}

/// How many backslashes there are.
fn run(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| **byte == b'\\').count()
}

fn hex(bytes: &[u8], digits: usize) -> Option<u32> {
    let text = std::str::from_utf8(bytes.get(..digits)?).ok()?;
    if !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(text, 16).ok()
}

/// Escapes of JSON (RFC 8259, section 7), and `\x20`.
fn backslash(rest: &[u8]) -> Option<ByteReading> {
    let (kind, rest) = rest.split_first()?;
    Some(match kind {
        b'"' | b'\\' | b'/' | b'\'' => ByteReading::byte(*kind, 2),
        b'n' => ByteReading::byte(b'\n', 2),
        b'r' => ByteReading::byte(b'\r', 2),
        b't' => ByteReading::byte(b'\t', 2),
        b'b' => ByteReading::byte(8, 2),
        b'f' => ByteReading::byte(12, 2),
        b'x' => ByteReading::character(char::from_u32(hex(rest, 2)?)?, 4),
        b'u' => {
            let unit = hex(rest, 4)?;
            match char::from_u32(unit) {
                Some(c) => ByteReading::character(c, 6),
                None => {
                    let other = rest.get(4..)?;
                    let between = run(other);
                    let low = hex(other[between..].strip_prefix(b"u").filter(|_| between > 0)?, 4)?;
                    let pair = [u16::try_from(unit).ok()?, u16::try_from(low).ok()?];
                    ByteReading::character(char::decode_utf16(pair).next()?.ok()?, 11 + between)
                }
            }
        }
        _ => return None,
    })
}

/// `&amp;`, `&#38;`, `&#x26;`.
fn entity(rest: &[u8]) -> Option<ByteReading> {
    let end = rest.iter().position(|byte| *byte == b';')?;
    let name = std::str::from_utf8(&rest[..end]).ok()?;
    let length = end + 2;
    let Some(number) = name.strip_prefix('#') else {
        return NAMED.iter().find(|(known, _)| *known == name).map(|(_, byte)| ByteReading::byte(*byte, length));
    };
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    Some(ByteReading::character(char::from_u32(code.ok()?)?, length))
}
