//! Texts from outside in the languages of channels: escaped, and where they are Markdown a small safe part of it.
//!
//! Nothing of a text becomes a tag, a mention or a link that hides where it leads: HTML is shown as text, and of a link
//! its address is shown.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::channel::templates::Format;
use crate::visible::visible;

/// What the format reads as markup, made harmless. Hidden characters are shown.
pub fn escaped(text: &str, format: Format) -> String {
    let text = visible(text);
    match format {
        Format::Plain => text,
        Format::Html => text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"),
        // both know these three entities: Slack's "Formatting text for app surfaces", Telegram's "HTML style"
        Format::Mrkdwn | Format::Telegram => text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
    }
}

/// Paragraphs and line ends as they stand.
pub fn lines(text: &str, format: Format) -> String {
    let text = escaped(text, format);
    match format {
        Format::Html => {
            let paragraphs = text.split("\n\n").map(|one| one.trim_matches('\n')).filter(|one| !one.is_empty());
            let shown: Vec<String> =
                paragraphs.map(|one| format!("<p dir=\"auto\">{}</p>", one.replace('\n', "<br>\n"))).collect();
            shown.join("\n")
        }
        _ => text,
    }
}

/// Markdown in the language of the format; plain text stays as it was written.
pub fn markdown(text: &str, format: Format) -> String {
    if format == Format::Plain {
        return escaped(text, format);
    }
    let mut writer = Writer { format, out: String::new(), lists: vec![], link: None, opened: false };
    for event in Parser::new_ext(text, Options::ENABLE_STRIKETHROUGH) {
        writer.write(event);
    }
    writer.out.trim().to_owned()
}

struct Writer {
    format: Format,
    out: String,
    /// The next number of each list that is open; `None` for bullets.
    lists: Vec<Option<u64>>,
    /// The address of the link that is open, and where its text began.
    link: Option<(String, usize)>,
    /// A quotation has just begun: what follows belongs right behind its sign.
    opened: bool,
}

impl Writer {
    fn write(&mut self, event: Event) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::Code(text) => {
                self.tag("<code>", "`", "<code>");
                self.text(&text);
                self.tag("</code>", "`", "</code>");
            }
            Event::SoftBreak | Event::HardBreak => self.tag("<br>\n", "\n", "\n"),
            Event::Rule => self.block(self.by("<hr>", "―――", "―――")),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag) {
        match tag {
            Tag::Paragraph if self.lists.is_empty() => self.block(self.by("<p dir=\"auto\">", "", "")),
            Tag::Heading { .. } => {
                self.block(self.by("<h3 dir=\"auto\">", "*", "<b>"));
            }
            Tag::BlockQuote(_) => {
                self.block(self.by("<blockquote>", "&gt; ", "<blockquote>"));
                self.opened = true;
            }
            Tag::CodeBlock(_) => self.block(self.by("<pre>", "```\n", "<pre>")),
            Tag::List(first) => {
                let open = match first {
                    Some(_) => "<ol>",
                    None => "<ul>",
                };
                self.block(self.by(open, "", ""));
                self.lists.push(first);
            }
            Tag::Item => self.item(),
            Tag::Strong => self.tag("<strong>", "*", "<b>"),
            Tag::Emphasis => self.tag("<em>", "_", "<i>"),
            Tag::Strikethrough => self.tag("<s>", "~", "<s>"),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some((dest_url.into_string(), self.out.len()));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph if self.lists.is_empty() => self.tag("</p>", "", ""),
            TagEnd::Heading(_) => self.tag("</h3>", "*", "</b>"),
            TagEnd::BlockQuote(_) => self.tag("</blockquote>", "", "</blockquote>"),
            TagEnd::CodeBlock => self.tag("</pre>", "```", "</pre>"),
            TagEnd::List(_) => {
                let closed = match self.lists.pop().flatten() {
                    Some(_) => "</ol>",
                    None => "</ul>",
                };
                self.tag(closed, "", "");
            }
            TagEnd::Item => self.tag("</li>", "", ""),
            TagEnd::Strong => self.tag("</strong>", "*", "</b>"),
            TagEnd::Emphasis => self.tag("</em>", "_", "</i>"),
            TagEnd::Strikethrough => self.tag("</s>", "~", "</s>"),
            TagEnd::Link | TagEnd::Image => self.close_link(),
            _ => {}
        }
    }

    fn item(&mut self) {
        if self.format == Format::Html {
            self.out.push_str("\n<li dir=\"auto\">");
            return;
        }
        let depth = self.lists.len().saturating_sub(1);
        let bullet = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "• ".to_owned(),
        };
        if !self.out.is_empty() && !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        self.out.push_str(&"  ".repeat(depth));
        self.out.push_str(&bullet);
    }

    /// What is seen of a link is where it leads.
    fn close_link(&mut self) {
        let Some((address, from)) = self.link.take() else { return };
        let shown = escaped(&address, self.format);
        if self.out.get(from..).is_none_or(|text| text != shown) {
            self.out.push_str(&format!(" ({shown})"));
        }
    }

    /// A new block, apart from what stands before it.
    fn block(&mut self, open: &str) {
        if !self.out.is_empty() && !std::mem::take(&mut self.opened) {
            let end = if self.lists.is_empty() && self.format != Format::Html { "\n\n" } else { "\n" };
            let there = self.out.len() - self.out.trim_end_matches('\n').len();
            self.out.push_str(&end[there.min(end.len())..]);
        }
        self.out.push_str(open);
    }

    fn text(&mut self, text: &str) {
        self.out.push_str(&escaped(text, self.format));
    }

    fn tag(&mut self, html: &'static str, mrkdwn: &'static str, telegram: &'static str) {
        let tag = self.by(html, mrkdwn, telegram);
        self.out.push_str(tag);
    }

    fn by(&self, html: &'static str, mrkdwn: &'static str, telegram: &'static str) -> &'static str {
        match self.format {
            Format::Html => html,
            Format::Mrkdwn => mrkdwn,
            Format::Telegram => telegram,
            Format::Plain => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "# Mail\n\nTwo **urgent** ones & _one_ <b>bold</b>:\n\n1. from `a<b@c.org>`\n2. [see](https://x.example/?a=1&b=2)\n   - nested\n\n\
        ```sh\nrm <x>\n```\n\n> quoted\n\nlast\nline <!channel> <script>alert(1)</script> ![p](http://t.example/p.png)";

    #[test]
    fn markdown_becomes_the_language_of_each_format() {
        insta::assert_snapshot!(markdown(ANSWER, Format::Html), @r####"
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
        insta::assert_snapshot!(markdown(ANSWER, Format::Mrkdwn), @r####"
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
        insta::assert_snapshot!(markdown(ANSWER, Format::Telegram), @r####"
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
        assert_eq!(markdown(ANSWER, Format::Plain), ANSWER);
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
            for format in [Format::Html, Format::Mrkdwn, Format::Telegram] {
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
            lines("a\nb\n\n\nc & d", Format::Html),
            "<p dir=\"auto\">a<br>\nb</p>\n<p dir=\"auto\">c &amp; d</p>"
        );
        assert_eq!(lines("a\nb\n\nc & d", Format::Mrkdwn), "a\nb\n\nc &amp; d");
    }
}
