//! Texts from outside in the languages of channels: escaped, and where they are Markdown a small safe part of it.
//!
//! Nothing of a text becomes a tag, a mention or a link that hides where it leads: HTML is shown as text, and of a link
//! its address is shown.

mod output;
mod table;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::base::template::html::{MarkupPlace, escape_html};
use crate::base::unicode_safety::escape_hidden;
use crate::ports::channel::templates::MessageFormat;
use crate::ports::channel::templates::markup::output::{MarkupOutput, NESTING};
use crate::ports::channel::templates::markup::table::MarkupTable;

/// The text with the format's markup made harmless. Hidden characters are shown.
pub fn escaped(text: &str, format: MessageFormat) -> String {
    let text = escape_hidden(text);
    match format {
        MessageFormat::Plain => text,
        MessageFormat::Html => escape_html(&text, MarkupPlace::DoubleQuoted),
        // both know these three entities: Slack's "Formatting text for app surfaces", Telegram's "HTML style"
        MessageFormat::Mrkdwn | MessageFormat::Telegram => escape_html(&text, MarkupPlace::Text),
    }
}

/// Paragraphs and line ends as they stand.
pub fn lines(text: &str, format: MessageFormat) -> String {
    let text = escaped(text, format);
    match format {
        MessageFormat::Html => {
            let paragraphs = text.split("\n\n").map(|one| one.trim_matches('\n')).filter(|one| !one.is_empty());
            let shown: Vec<String> =
                paragraphs.map(|one| format!("<p dir=\"auto\">{}</p>", one.replace('\n', "<br>\n"))).collect();
            shown.join("\n")
        }
        _ => text,
    }
}

/// Markdown in the language of the format; plain text stays as it was written, but for its tables.
pub fn markdown(text: &str, format: MessageFormat) -> String {
    if format == MessageFormat::Plain {
        return escaped(&without_tables(text), format);
    }
    let mut writer =
        MarkupWriter { format, out: MarkupOutput::default(), lists: vec![], quotes: 0, link: None, table: None };
    for event in Parser::new_ext(text, Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TABLES) {
        writer.write(event);
        if writer.out.is_full() {
            break;
        }
    }
    writer.out.finish()
}

/// The text with the lines of each table in its place.
fn without_tables(text: &str) -> String {
    let (mut out, mut shown) = (MarkupOutput::default(), 0);
    let mut table: Option<(MarkupTable, std::ops::Range<usize>)> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match (event, &mut table) {
            (Event::Start(Tag::Table(_)), _) => table = Some((MarkupTable::default(), range)),
            (Event::End(TagEnd::Table), read) => {
                let Some((read, place)) = read.take() else { continue };
                out.push(&text[shown..place.start]);
                read.show(MessageFormat::Plain, &mut |line| out.push(line));
                let breaks = &text[..place.end];
                out.push(if breaks.ends_with('\n') { "\n" } else { "" });
                shown = place.end;
            }
            (event, Some((table, _))) => cell(table, event),
            (_, None) => {}
        }
        if out.is_full() {
            return out.finish();
        }
    }
    match shown {
        0 => text.to_owned(),
        _ => {
            out.push(&text[shown..]);
            out.finish()
        }
    }
}

fn cell(table: &mut MarkupTable, event: Event) {
    match event {
        Event::Start(Tag::TableHead | Tag::TableRow) => table.row(),
        Event::Start(Tag::TableCell) => table.cell(),
        Event::Text(text) | Event::Code(text) | Event::Html(text) | Event::InlineHtml(text) => table.text(&text),
        Event::SoftBreak | Event::HardBreak => table.text(" "),
        _ => {}
    }
}

struct MarkupWriter {
    format: MessageFormat,
    out: MarkupOutput,
    /// The next number of each list that is open, `None` for bullets; those that are too deep are none.
    lists: Vec<Option<Option<u64>>>,
    /// Quotations that are open.
    quotes: usize,
    /// The address of the link that is open, and where its text began.
    link: Option<(String, usize)>,
    /// The table that is open.
    table: Option<MarkupTable>,
}

impl MarkupWriter {
    fn write(&mut self, event: Event) {
        if let Some(table) = &mut self.table {
            match event {
                Event::End(TagEnd::Table) => self.close_table(),
                Event::Start(Tag::Link { dest_url, .. }) => self.link = Some((dest_url.into_string(), 0)),
                Event::End(TagEnd::Link) => {
                    if let Some((address, _)) = self.link.take() {
                        table.text(&format!(" ({address})"));
                    }
                }
                event => cell(table, event),
            }
            return;
        }
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::Code(text) => {
                self.tag("<code>", "`", "<code>");
                self.text(&text);
                self.tag("</code>", "`", "</code>");
            }
            Event::SoftBreak | Event::HardBreak => match self.format {
                MessageFormat::Html => self.out.push("<br>\n"),
                _ => self.line(1),
            },
            Event::Rule => {
                self.block();
                self.tag("<hr>", "―――", "―――");
            }
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag) {
        match tag {
            Tag::Paragraph if self.lists.is_empty() => self.block_of("<p dir=\"auto\">", "", "", ["</p>", "", ""]),
            Tag::Heading { .. } => self.block_of("<h3 dir=\"auto\">", "*", "<b>", ["</h3>", "*", "</b>"]),
            Tag::BlockQuote(_) => self.quote(),
            Tag::CodeBlock(_) => self.block_of("<pre>", "```\n", "<pre>", ["</pre>", "```", "</pre>"]),
            Tag::List(first) => {
                self.block();
                let (open, close) = if first.is_some() { ("<ol>", "</ol>") } else { ("<ul>", "</ul>") };
                let html = self.format == MessageFormat::Html;
                let shown = self.out.open(if html { open } else { "" }, if html { close } else { "" });
                self.lists.push(shown.then_some(first));
            }
            Tag::Item => self.item(),
            Tag::Strong => self.inline("<strong>", "*", "<b>", ["</strong>", "*", "</b>"]),
            Tag::Emphasis => self.inline("<em>", "_", "<i>", ["</em>", "_", "</i>"]),
            Tag::Strikethrough => self.inline("<s>", "~", "<s>", ["</s>", "~", "</s>"]),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some((dest_url.into_string(), self.out.len()));
            }
            Tag::Table(_) => self.table = Some(MarkupTable::default()),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph if !self.lists.is_empty() => {}
            TagEnd::BlockQuote(_) => {
                self.quotes -= 1;
                self.out.close();
            }
            TagEnd::List(_) => {
                self.lists.pop();
                self.out.close();
            }
            TagEnd::Paragraph
            | TagEnd::Heading(_)
            | TagEnd::CodeBlock
            | TagEnd::Item
            | TagEnd::Strong
            | TagEnd::Emphasis
            | TagEnd::Strikethrough => self.out.close(),
            TagEnd::Link | TagEnd::Image => self.close_link(),
            _ => {}
        }
    }

    /// Slack and Telegram know no quotation inside of another one.
    fn quote(&mut self) {
        self.block();
        self.quotes += 1;
        let outermost = self.quotes == 1;
        match self.format {
            MessageFormat::Html => drop(self.out.open("<blockquote>", "</blockquote>")),
            MessageFormat::Telegram if outermost => drop(self.out.open("<blockquote>", "</blockquote>")),
            MessageFormat::Mrkdwn if outermost => drop(self.out.open("&gt; ", "")),
            _ => drop(self.out.open("", "")),
        }
    }

    fn item(&mut self) {
        let deepest = self.lists.len().min(NESTING);
        let sign = match self.lists.last_mut() {
            Some(Some(Some(number))) => {
                *number = number.saturating_add(1);
                Some(format!("{}. ", *number - 1))
            }
            Some(Some(None)) => Some("• ".to_owned()),
            // a list that is too deep goes on in the item around it
            Some(None) | None => None,
        };
        let html = self.format == MessageFormat::Html;
        match sign {
            None => {
                self.out.push(" ");
                self.out.open("", "");
            }
            Some(_) if html => drop(self.out.open("\n<li dir=\"auto\">", "</li>")),
            Some(sign) => {
                if !self.out.is_empty() && self.out.breaks() == 0 && !self.at_quote() {
                    self.line(1);
                }
                self.out.push(&"  ".repeat(deepest.saturating_sub(1)));
                self.out.open(&sign, "");
            }
        }
    }

    /// Writes the address behind the text of a link, unless the text is the address.
    fn close_link(&mut self) {
        let Some((address, from)) = self.link.take() else { return };
        let shown = escaped(&address, self.format);
        if self.out.text().get(from..).is_none_or(|text| text != shown) {
            self.out.push(&format!(" ({shown})"));
        }
    }

    fn close_table(&mut self) {
        let Some(table) = self.table.take() else { return };
        self.block();
        let (out, format) = (&mut self.out, self.format);
        table.show(format, &mut |line| out.push(line));
    }

    fn block_of(&mut self, html: &'static str, mrkdwn: &'static str, telegram: &'static str, close: [&'static str; 3]) {
        self.block();
        self.inline(html, mrkdwn, telegram, close);
    }

    fn inline(&mut self, html: &'static str, mrkdwn: &'static str, telegram: &'static str, close: [&'static str; 3]) {
        let (open, close) = (self.by(html, mrkdwn, telegram), self.by(close[0], close[1], close[2]));
        self.out.open(open, close);
    }

    /// A new block, apart from what stands before it.
    fn block(&mut self) {
        if self.out.is_empty() || self.at_quote() {
            return;
        }
        match self.lists.is_empty() && self.format != MessageFormat::Html {
            true => self.line(2),
            false => self.line(1),
        }
    }

    /// Whether a quotation has just begun: what follows belongs right behind its sign.
    fn at_quote(&self) -> bool {
        self.quotes > 0 && ["<blockquote>", "&gt; "].iter().any(|sign| self.out.text().ends_with(sign))
    }

    /// So many line breaks; in Slack each line of a quotation has its sign.
    fn line(&mut self, breaks: usize) {
        match self.format == MessageFormat::Mrkdwn && self.quotes > 0 {
            true => (0..breaks).for_each(|_| self.out.push("\n&gt; ")),
            false => (self.out.breaks()..breaks).for_each(|_| self.out.push("\n")),
        }
    }

    fn text(&mut self, text: &str) {
        let shown = escaped(text, self.format);
        self.out.push(&shown);
    }

    fn tag(&mut self, html: &'static str, mrkdwn: &'static str, telegram: &'static str) {
        let tag = self.by(html, mrkdwn, telegram);
        self.out.push(tag);
    }

    fn by(&self, html: &'static str, mrkdwn: &'static str, telegram: &'static str) -> &'static str {
        match self.format {
            MessageFormat::Html => html,
            MessageFormat::Mrkdwn => mrkdwn,
            MessageFormat::Telegram => telegram,
            MessageFormat::Plain => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::channel::templates::markup::output::MARKUP_BYTES;
    use crate::ports::channel::templates::markup::table::COLUMNS;

    const ANSWER: &str = "# Mail\n\nTwo **urgent** ones & _one_ <b>bold</b>:\n\n1. from `a<b@c.org>`\n2. [see](https://x.example/?a=1&b=2)\n   - nested\n\n\
        ```sh\nrm <x>\n```\n\n> quoted\n\nlast\nline <!channel> <script>alert(1)</script> ![p](http://t.example/p.png)";

    #[test]
    fn markdown_becomes_the_language_of_each_format() {
        insta::assert_snapshot!(markdown(ANSWER, MessageFormat::Html), @r####"
<h3 dir="auto">Mail</h3>
<p dir="auto">Two <strong>urgent</strong> ones &amp; <em>one</em> &lt;b&gt;bold&lt;/b&gt;:</p>
<ol>
<li dir="auto">from <code>a&lt;b@c.org&gt;</code></li>
<li dir="auto">see (https://x.example/?a=1&amp;b=2)
<ul>
<li dir="auto">nested</li></ul></li></ol>
<pre>rm &lt;x&gt;
</pre>
<blockquote><p dir="auto">quoted</p></blockquote>
<p dir="auto">last<br>
line &lt;!channel&gt; &lt;script&gt;alert(1)&lt;/script&gt; p (http://t.example/p.png)</p>
"####);
        insta::assert_snapshot!(markdown(ANSWER, MessageFormat::Mrkdwn), @r####"
*Mail*

Two *urgent* ones &amp; _one_ &lt;b&gt;bold&lt;/b&gt;:

1. from `a&lt;b@c.org&gt;`
2. see (https://x.example/?a=1&amp;b=2)
  • nested

```
rm &lt;x&gt;
```

&gt; quoted

last
line &lt;!channel&gt; &lt;script&gt;alert(1)&lt;/script&gt; p (http://t.example/p.png)
"####);
        insta::assert_snapshot!(markdown(ANSWER, MessageFormat::Telegram), @r####"
<b>Mail</b>

Two <b>urgent</b> ones &amp; <i>one</i> &lt;b&gt;bold&lt;/b&gt;:

1. from <code>a&lt;b@c.org&gt;</code>
2. see (https://x.example/?a=1&amp;b=2)
  • nested

<pre>rm &lt;x&gt;
</pre>

<blockquote>quoted</blockquote>

last
line &lt;!channel&gt; &lt;script&gt;alert(1)&lt;/script&gt; p (http://t.example/p.png)
"####);
        assert_eq!(markdown(ANSWER, MessageFormat::Plain), ANSWER);
    }

    #[test]
    fn no_text_becomes_a_tag_a_mention_or_a_link_that_hides_where_it_leads() {
        let hostile = [
            "<script>x</script>",
            "<img src=x onerror=y>",
            "<!channel> <@U1>",
            "<https://evil.example|bank>",
            "&lt;b&gt;",
            "[bank](javascript:alert(1))",
            "</p><a href=//e>",
            "a\u{202e}b",
            "<b",
            "`<i>`",
            "[x](<a\" onclick=b>)",
        ];
        for text in hostile {
            for format in [MessageFormat::Html, MessageFormat::Mrkdwn, MessageFormat::Telegram] {
                for shown in [escaped(text, format), lines(text, format), markdown(text, format)] {
                    let tags = shown.split('<').skip(1).map(|tag| tag.split('>').next().unwrap_or_default());
                    for tag in tags {
                        let known = ["p dir=\"auto\"", "/p", "code", "/code", "br"];
                        assert!(known.contains(&tag), "{text:?} as {format:?}: {shown}");
                    }
                    assert!(!shown.contains('\u{202e}'), "{shown}");
                }
            }
        }
    }

    #[test]
    fn paragraphs_and_line_ends_stay() {
        assert_eq!(
            lines("a\nb\n\n\nc & d", MessageFormat::Html),
            "<p dir=\"auto\">a<br>\nb</p>\n<p dir=\"auto\">c &amp; d</p>"
        );
        assert_eq!(lines("a\nb\n\nc & d", MessageFormat::Mrkdwn), "a\nb\n\nc &amp; d");
    }

    const MARKED: [MessageFormat; 3] = [MessageFormat::Html, MessageFormat::Mrkdwn, MessageFormat::Telegram];
    const TABLE: &str =
        "Prices:\n\n| City | Price |\n|---|---:|\n| Oslo | `480` |\n| A & B | [612](https://x.example) |\n\nEnd";

    #[test]
    fn table_is_readable_in_each_format() {
        insta::assert_snapshot!(markdown(TABLE, MessageFormat::Html), @r####"
<p dir="auto">Prices:</p>
<table>
<tr><th dir="auto">City</th><th dir="auto">Price</th></tr>
<tr><td dir="auto">Oslo</td><td dir="auto">480</td></tr>
<tr><td dir="auto">A &amp; B</td><td dir="auto">612 (https://x.example)</td></tr></table>
<p dir="auto">End</p>
"####);
        insta::assert_snapshot!(markdown(TABLE, MessageFormat::Mrkdwn), @r####"
Prices:

```
City   Price
-----  -----------------------
Oslo   480
A &amp; B  612 (https://x.example)
```

End
"####);
        insta::assert_snapshot!(markdown(TABLE, MessageFormat::Telegram), @r####"
Prices:

<pre>City   Price
-----  -----------------------
Oslo   480
A &amp; B  612 (https://x.example)
</pre>

End
"####);
        insta::assert_snapshot!(markdown(TABLE, MessageFormat::Plain), @r####"
Prices:

City: Oslo
Price: 480

City: A & B
Price: 612

End
"####);
        let wide = TABLE.replace("Oslo", &"O".repeat(60));
        assert!(
            markdown(&wide, MessageFormat::Mrkdwn)
                .contains(&format!("City: {}\nPrice: 480\n\nCity: A", "O".repeat(60)))
        );
    }

    #[test]
    fn nesting_is_capped_and_costs_no_more_than_its_text() {
        for part in ["- + ", "> ", "1. ", "**_", "- > ", "[", "![", "`", "~~a ", "| a |\n|-|\n", "- a\n  "] {
            let text = format!("{}a", part.repeat(39_000 / part.len()));
            for format in MARKED.into_iter().chain([MessageFormat::Plain]) {
                let shown = markdown(&text, format);
                assert!(shown.len() <= 12 * text.len(), "{part:?} as {format:?}: {} bytes", shown.len());
                assert!(shown.lines().all(|line| line.len() - line.trim_start().len() <= 2 * NESTING), "{part:?}");
            }
        }
    }

    #[test]
    fn quotations_nest_down_to_the_deepest_that_is_shown() {
        let quotations = |deep: usize| {
            let shown = markdown(&format!("{}a", "> ".repeat(deep)), MessageFormat::Html);
            (shown.matches("<blockquote").count(), shown.contains('a'))
        };
        assert_eq!(quotations(NESTING), (NESTING, true));
        assert_eq!(quotations(NESTING + 1), (NESTING, true));
    }

    #[test]
    fn output_ends_at_its_bound_and_is_closed_there() {
        let most = "&".repeat(MARKUP_BYTES / 5 - 20);
        let more = format!("- **{}** {}", "a", "& b ".repeat(MARKUP_BYTES / 4));
        for format in MARKED {
            assert!(!markdown(&most, format).contains('…'));
            let cut = markdown(&more, format);
            assert!(cut.len() <= MARKUP_BYTES + 100 && cut.contains('…'), "{format:?}: {}", cut.len());
        }
        assert!(markdown(&more, MessageFormat::Html).ends_with("…</li></ul>"), "{format}", format = &more[..10]);
    }

    #[test]
    fn table_of_many_columns_shows_the_first() {
        let row = |cell: &str, columns: usize| format!("|{}\n", format!("{cell}|").repeat(columns));
        let table = |columns| format!("{}{}{}", row("h", columns), row("-", columns), row("c", columns));
        let cells = |columns| markdown(&table(columns), MessageFormat::Html).matches("<td").count();
        assert_eq!((cells(COLUMNS), cells(COLUMNS + 1)), (COLUMNS, COLUMNS));
    }

    /// Every tag that is opened is closed, in order.
    fn is_closed(html: &str) -> bool {
        let mut open = vec![];
        for tag in html.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
            let name = tag.split(' ').next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) if open.pop() != Some(name) => return false,
                Some(_) => {}
                None if ["br", "hr"].contains(&name) => {}
                None => open.push(name),
            }
        }
        open.is_empty()
    }

    proptest::proptest! {
        #[test]
        fn markup_of_any_nesting_is_closed(
            text in "((- |\\+ |> |1\\. |  |\\*\\*|_|~~|`|```|# |\\| a |\\|-|\\||\n|\n\n|\\[|\\]\\(b\\)|a|<b>|&)){0,120}"
        ) {
            for format in [MessageFormat::Html, MessageFormat::Telegram] {
                let shown = markdown(&text, format);
                proptest::prop_assert!(is_closed(&shown), "{text:?} as {format:?}: {shown}");
            }
            proptest::prop_assert!(markdown(&text, MessageFormat::Mrkdwn).len() <= 40 * (text.len() + 1));
        }
    }
}
