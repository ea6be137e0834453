//! The README as a list of blocks, and what stands in one: commands with what they print.

/// The text between two fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    pub language: String,
    pub text: String,
    /// Of the first line of its text, as an editor counts.
    pub line: usize,
}

/// A command, and what the page says that it prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub command: String,
    pub printed: String,
    pub line: usize,
}

/// All fenced blocks of a page, in its order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(language) if !open => {
                found.push(Block { language: language.to_owned(), text: String::new(), line: index + 2 });
                open = true;
            }
            Some(_) => open = false,
            None if open => {
                let block = found.last_mut().expect("it was opened");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    assert!(!open, "the last block is not closed");
    found
}

impl Block {
    pub fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The commands behind `$`, each with what stands below it.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        let mut unfinished = false;
        for (index, line) in self.text.lines().enumerate() {
            match line.strip_prefix("$ ") {
                Some(command) if !unfinished => {
                    steps.push(Step { command: command.to_owned(), printed: String::new(), line: self.line + index });
                }
                _ => {
                    let step = steps.last_mut().expect("a block of a console begins with a command");
                    let text = if unfinished { &mut step.command } else { &mut step.printed };
                    text.push_str(if unfinished { "\n" } else { "" });
                    text.push_str(line);
                    text.push_str(if unfinished { "" } else { "\n" });
                }
            }
            unfinished =
                is_unfinished(&steps.last().expect("a command").command) && (unfinished || line.starts_with("$ "));
        }
        steps
    }
}

/// Whether a shell would ask for more: a quotation is open, or the line goes on.
fn is_unfinished(command: &str) -> bool {
    let mut quote = None;
    let mut chars = command.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) if chars.next().is_none() => return true,
            ('\\', None | Some('"')) => {}
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => quote = Some(c),
            _ => {}
        }
    }
    quote.is_some()
}

#[test]
fn commands_of_several_lines_are_told_from_what_they_print() {
    let page = "x\n```console\n$ one \\\n    'two\nthree'\nprinted\n…\n$ four\n```\n```\ny\n```\n";
    let found = blocks(page);
    let step = |command: &str, printed: &str, line| Step { command: command.into(), printed: printed.into(), line };
    assert_eq!(found[0].steps(), [step("one \\\n    'two\nthree'", "printed\n…\n", 3), step("four", "", 8)]);
    assert_eq!((found[0].language.as_str(), found[1].text.as_str()), ("console", "y\n"));
}
