//! Whether a text is one query. It reads just enough of SQL to know where texts, names and comments end.

/// Dialects that are read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Postgres,
    Sqlite,
}

/// Keywords with which a query may begin. `with` may hold a writing statement: that is what read-only transactions are
/// for.
const BEGINNINGS: [&str; 3] = ["select", "with", "values"];

/// The query without the semicolon at its end, and what may be behind that. Refuses what is more than one statement,
/// what is no query, and what does not end.
pub fn check(query: &str, dialect: Dialect) -> Result<&str, String> {
    let mut rest = query;
    let (mut first, mut depth, mut end) = (None, 0_usize, None);
    while let Some(piece) = next(&mut rest, dialect)? {
        match piece {
            StatementPart::Semicolon if depth == 0 && end.is_none() => end = Some(query.len() - rest.len() - 1),
            _ if end.is_some() => return Err("must be one statement; there is something behind the semicolon".into()),
            StatementPart::Semicolon => return Err("has a semicolon within brackets".into()),
            StatementPart::Open => depth += 1,
            StatementPart::Close => depth = depth.checked_sub(1).ok_or("has a `)` too many")?,
            StatementPart::Word(_) | StatementPart::Other => {}
        }
        if first.is_none() && !matches!(piece, StatementPart::Open) {
            first = Some(piece);
        }
    }
    match first {
        None => Err("must not be empty".into()),
        Some(StatementPart::Word(word)) if BEGINNINGS.iter().any(|beginning| word.eq_ignore_ascii_case(beginning)) => {
            if depth == 0 {
                Ok(&query[..end.unwrap_or(query.len())])
            } else {
                Err("lacks a `)`".into())
            }
        }
        Some(_) => Err("must be a query: it begins with `select`, `with` or `values`".into()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum StatementPart<'a> {
    Word(&'a str),
    Open,
    Close,
    Semicolon,
    Other,
}

/// The next piece, past space and comments; `None` at the end.
fn next<'a>(rest: &mut &'a str, dialect: Dialect) -> Result<Option<StatementPart<'a>>, String> {
    skip_comments(rest, dialect)?;
    let text = *rest;
    let Some(begins) = text.chars().next() else { return Ok(None) };
    let (piece, length) = match begins {
        ';' => (StatementPart::Semicolon, 1),
        '(' => (StatementPart::Open, 1),
        ')' => (StatementPart::Close, 1),
        '\'' => (StatementPart::Other, quoted(text, '\'', false)?),
        '"' => (StatementPart::Other, quoted(text, '"', false)?),
        '`' if dialect == Dialect::Sqlite => (StatementPart::Other, quoted(text, '`', false)?),
        '[' if dialect == Dialect::Sqlite => (StatementPart::Other, until(text, "]", 1)?),
        '$' if dialect == Dialect::Postgres => (StatementPart::Other, dollar(text)?),
        c if is_word(c) => {
            let length = text.find(|c| !is_word(c) && c != '$').unwrap_or(text.len());
            let escapes = dialect == Dialect::Postgres && text[..length].eq_ignore_ascii_case("e");
            match text[length..].starts_with('\'') && escapes {
                true => (StatementPart::Other, length + quoted(&text[length..], '\'', true)?),
                false => (StatementPart::Word(&text[..length]), length),
            }
        }
        c => (StatementPart::Other, c.len_utf8()),
    };
    *rest = &text[length..];
    Ok(Some(piece))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn skip_comments(rest: &mut &str, dialect: Dialect) -> Result<(), String> {
    loop {
        let text = rest.trim_start();
        *rest = if text.starts_with("--") {
            &text[text.find('\n').unwrap_or(text.len())..]
        } else if text.starts_with("/*") {
            &text[comment(text, dialect)?..]
        } else {
            *rest = text;
            return Ok(());
        };
    }
}

/// The length of a comment in brackets; Postgres nests them.
fn comment(text: &str, dialect: Dialect) -> Result<usize, String> {
    if dialect == Dialect::Sqlite {
        return until(text, "*/", 2);
    }
    let (mut at, mut depth) = (0, 0);
    loop {
        let here = &text[at..];
        if here.starts_with("/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if here.starts_with("*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return Ok(at);
            }
        } else {
            at += here.chars().next().ok_or("has a comment that does not end")?.len_utf8();
        }
    }
}

/// The length of what is quoted; the quote within is doubled, or behind a backslash.
fn quoted(text: &str, quote: char, backslash: bool) -> Result<usize, String> {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if backslash && c == '\\' {
            chars.next();
        } else if c == quote {
            if chars.peek().is_none_or(|(_, next)| *next != quote) {
                return Ok(at + 1);
            }
            chars.next();
        }
    }
    Err(format!("has a {quote} that is not closed"))
}

/// `$tag$ … $tag$`, or `$1`.
fn dollar(text: &str) -> Result<usize, String> {
    let tag = text[1..].find(|c| !is_word(c)).map(|end| &text[..end + 1]);
    match tag.filter(|tag| text[tag.len()..].starts_with('$') && !tag[1..].starts_with(|c: char| c.is_ascii_digit())) {
        Some(tag) => {
            let tag = format!("{tag}$");
            until(text, &tag, tag.len())
        }
        None => Ok(1),
    }
}

fn until(text: &str, end: &str, from: usize) -> Result<usize, String> {
    let found = text[from..].find(end).ok_or_else(|| format!("has something open that `{end}` should close"))?;
    Ok(from + found + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_taken() {
        for query in [
            "select 1",
            "  SELECT count(*) from orders;  ",
            "-- how many\nselect 1 -- of them",
            "/* a ; b */ select ';', \";\" from t;",
            "with x as (select 1) select * from x",
            "(select 1) union (select 2)",
            "values (1), (2)",
            "select 'it''s; fine'",
        ] {
            for dialect in [Dialect::Postgres, Dialect::Sqlite] {
                assert!(check(query, dialect).is_ok(), "{query}");
            }
        }
        for query in ["select $$;$$", "select $a$ ; $$ ; $a$, $1", r"select E'\';', 1", "select /* a /* ; */ ; */ 1"] {
            assert_eq!(check(query, Dialect::Postgres), Ok(query), "{query}");
        }
        assert_eq!(check("select [;], `;` from t; -- ;", Dialect::Sqlite), Ok("select [;], `;` from t"));
    }

    #[test]
    fn all_else_is_refused() {
        for (query, part) in [
            ("", "empty"),
            ("-- nothing", "empty"),
            ("delete from orders", "begins with `select`"),
            ("insert into t values (1)", "begins with"),
            ("attach 'reveille.db' as r", "begins with"),
            ("pragma query_only = off", "begins with"),
            ("commit", "begins with"),
            ("set transaction read write", "begins with"),
            ("copy t to program 'x'", "begins with"),
            ("explain analyze delete from t", "begins with"),
            ("'select'", "begins with"),
            ("select 1; delete from t", "one statement"),
            ("select 1;;select 2", "one statement"),
            ("select 1) polled; commit; select * from (select 1", "`)` too many"),
            ("select (1", "lacks"),
            ("select 'a", "not closed"),
            ("select 1 /* ", ""),
            ("; select 1", "one statement"),
        ] {
            for dialect in [Dialect::Postgres, Dialect::Sqlite] {
                let why = check(query, dialect).expect_err(query);
                assert!(why.contains(part), "{query}: {why}");
            }
        }
        // what one of them takes for a text, the other does not
        assert!(check(r"select 'a\'; delete from t; --'", Dialect::Postgres).is_err());
        assert!(check("select /* /* */ 1; delete from t; --*/ 1", Dialect::Sqlite).is_err());
        assert!(check("select $$; delete from t; $$", Dialect::Sqlite).is_err());
    }
}
