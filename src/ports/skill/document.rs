//! `SKILL.md`: what a skill is called and for, and its instructions. What the specification calls optional is warned
//! of, not refused. Source: the Agent Skills specification, 2026.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest name, in characters.
const NAME: usize = 64;
/// Longest description, in characters.
const DESCRIPTION: usize = 1_024;
/// Longest text about what it needs, in characters.
const COMPATIBILITY: usize = 500;
/// Longest instructions, in characters.
pub const INSTRUCTIONS: usize = 32_000;
/// Longest licence, and longest name of a tool, in characters.
const LICENSE: usize = 500;
/// Tools that it may name, at most.
const TOOLS: usize = 200;
/// Keys of its metadata that are kept, and characters of each value.
const METADATA: (usize, usize) = (50, 500);
/// Most bytes of JSON of the properties as they are written.
const FRONTMATTER: usize = 16 * 1024;
/// The key of the metadata that names a model.
const MODEL: &str = "model";
/// The line around the frontmatter.
const FENCE: &str = "---";

/// A `SKILL.md` that can be used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillDocument {
    /// Name of the skill.
    pub name: String,
    /// Its purpose, and when to use it.
    pub description: String,
    /// Its licence.
    pub license: Option<String>,
    /// Its needs.
    pub compatibility: Option<String>,
    /// More about it.
    pub metadata: BTreeMap<String, String>,
    /// The only tools that are used while it is active; `None`: all that there are. It only narrows, and is no consent.
    pub allowed_tools: Option<Vec<String>>,
    /// Its instructions.
    pub instructions: String,
    /// Its properties as they are written, those that mean nothing here among them; of properties that are too long, or
    /// no JSON, its name and description.
    pub frontmatter: Map<String, Value>,
}

impl SkillDocument {
    /// The model of `[llm.models]` that answers while it is active.
    pub fn model(&self) -> Option<&str> {
        self.metadata.get(MODEL).map(String::as_str)
    }
}

/// A `SKILL.md` as it was read.
#[derive(Debug, Default)]
pub struct SkillReading {
    /// The skill, as far as it could be read.
    pub document: SkillDocument,
    /// Oddities that do not keep it from being used.
    pub warnings: Vec<String>,
    /// Reasons for which it can't be used.
    pub faults: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Frontmatter {
    name: Option<String>,
    description: Option<String>,
    license: Option<String>,
    compatibility: Option<String>,
    metadata: BTreeMap<String, Value>,
    #[serde(rename = "allowed-tools")]
    allowed_tools: Option<NamedTools>,
}

/// Separated by spaces, as the specification has it, or as a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum NamedTools {
    Text(String),
    List(Vec<String>),
}

/// Reads the `SKILL.md` of a folder of this name.
pub fn read(text: &str, folder: &str) -> SkillReading {
    let mut reading = SkillReading::default();
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let Some((written, instructions)) = parts(&text) else {
        reading.faults.push(format!("it does not begin with `{FENCE}`, its properties, and `{FENCE}`"));
        return reading;
    };
    let (frontmatter, verbatim) = match parse(written) {
        Ok(parsed) => parsed,
        Err(why) => {
            reading.faults.push(format!("its properties are no YAML: {why}"));
            return reading;
        }
    };
    reading.take(frontmatter, instructions.trim(), folder);
    reading.keep(verbatim);
    reading
}

/// The frontmatter, and what follows it.
fn parts(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix(FENCE)?.strip_prefix('\n')?;
    let end = rest.find("\n---").map(|end| end + 1).or_else(|| rest.starts_with(FENCE).then_some(0))?;
    let (written, behind) = rest.split_at(end);
    let behind = behind.strip_prefix(FENCE)?;
    (behind.is_empty() || behind.starts_with('\n')).then_some((written, behind))
}

/// Reads the properties, and once more as they are written; a text that a colon breaks is read in quotes.
fn parse(written: &str) -> Result<(Frontmatter, Option<Map<String, Value>>), String> {
    if written.trim().is_empty() {
        return Ok((Frontmatter::default(), Some(Map::new())));
    }
    let read = |text: &str| serde_saphyr::from_str::<Frontmatter>(text).map(|read| (read, verbatim(text)));
    read(written).or_else(|error| {
        let first = error.to_string();
        read(&quoted(written)).map_err(|_| first.lines().next().unwrap_or("it can't be read").to_owned())
    })
}

/// The properties as JSON, if they can be that and are not too long.
fn verbatim(written: &str) -> Option<Map<String, Value>> {
    let properties: Map<String, Value> = serde_saphyr::from_str(written).ok()?;
    let bytes = serde_json::to_vec(&properties).ok()?.len();
    (bytes <= FRONTMATTER).then_some(properties)
}

/// The properties with plain texts of the first level in quotes.
fn quoted(written: &str) -> String {
    let quote = |line: &str| match line.split_once(": ") {
        Some((key, value))
            if !line.starts_with([' ', '#', '-']) && !value.trim().starts_with(['"', '\'', '|', '>', '{', '[']) =>
        {
            format!("{key}: {}", Value::String(value.trim().to_owned()))
        }
        _ => line.to_owned(),
    };
    written.lines().map(quote).collect::<Vec<_>>().join("\n")
}

impl SkillReading {
    fn take(&mut self, frontmatter: Frontmatter, instructions: &str, folder: &str) {
        let Frontmatter { name, description, license, compatibility, metadata, allowed_tools } = frontmatter;
        let name = name.unwrap_or_default();
        match fault_of_name(&name) {
            Some(why) => self.faults.push(why),
            None if name != folder => self.warnings.push(format!("its name is `{name}`, and its folder `{folder}`")),
            None => {}
        }
        let mut description = description.unwrap_or_default().trim().to_owned();
        if description.is_empty() {
            self.faults.push("it has no `description`: no model would know when to use it".into());
        }
        self.shorten("description", &mut description, DESCRIPTION);
        let (mut license, mut compatibility) = (license, compatibility);
        license.iter_mut().for_each(|text| self.shorten("license", text, LICENSE));
        compatibility.iter_mut().for_each(|text| self.shorten("compatibility", text, COMPATIBILITY));
        let mut instructions = instructions.to_owned();
        if instructions.is_empty() {
            self.warnings.push("it has no instructions behind its properties".into());
        }
        self.shorten("instructions", &mut instructions, INSTRUCTIONS);
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let short = |value: Value| text(value).chars().take(METADATA.1).collect();
        let allowed_tools = allowed_tools.map(|tools| match tools {
            NamedTools::Text(text) => {
                text.split([' ', ',', '\n']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
            }
            NamedTools::List(names) => names,
        });
        if let Some(tools) = allowed_tools.as_ref().filter(|tools: &&Vec<String>| tools.len() > TOOLS) {
            self.faults.push(format!("its `allowed-tools` names {} tools; it may name {TOOLS}", tools.len()));
        }
        self.document = SkillDocument {
            name,
            description,
            license,
            compatibility,
            metadata: metadata.into_iter().take(METADATA.0).map(|(key, value)| (key, short(value))).collect(),
            allowed_tools,
            instructions,
            frontmatter: Map::new(),
        };
    }

    /// Keeps the properties as they are written.
    fn keep(&mut self, verbatim: Option<Map<String, Value>>) {
        self.document.frontmatter = verbatim.unwrap_or_else(|| {
            let why = format!("its properties have more than {FRONTMATTER} bytes as JSON, or can't be written as JSON");
            self.warnings.push(format!("{why}; MCP clients are shown its name and description alone"));
            let SkillDocument { name, description, .. } = &self.document;
            let told = [("name", name), ("description", description)];
            told.map(|(key, text)| (key.to_owned(), Value::from(text.as_str()))).into_iter().collect()
        });
    }

    fn shorten(&mut self, what: &str, text: &mut String, most: usize) {
        let count = text.chars().count();
        if count > most {
            self.warnings.push(format!("its {what} has {count} characters; the first {most} are used"));
            *text = text.chars().take(most).collect();
        }
    }
}

fn fault_of_name(name: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_fine = (1..=NAME).contains(&name.len())
        && name.chars().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--");
    (!is_fine).then(|| {
        format!("its `name` must be 1 to {NAME} lower-case letters, digits or single hyphens, and is `{name}`")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn skill_is_read_with_its_properties_and_instructions() {
        let text = "---\nname: flight-check\ndescription: Checks flights. Use it before a booking.\nlicense: MIT\n\
                    allowed-tools: http_request current_time\nmetadata:\n  model: cheap\n  version: 2\n---\n\n# How\n\nLook.\n";
        let reading = read(text, "flight-check");
        assert_eq!((reading.faults, reading.warnings), (vec![], vec![]));
        let document = reading.document;
        assert_eq!((document.name.as_str(), document.instructions.as_str()), ("flight-check", "# How\n\nLook."));
        assert_eq!(
            document.allowed_tools.as_deref(),
            Some(&["http_request".to_owned(), "current_time".to_owned()][..])
        );
        assert_eq!((document.model(), document.metadata["version"].as_str()), (Some("cheap"), "2"));
    }

    #[test]
    fn text_that_a_colon_breaks_is_read_in_quotes() {
        let reading = read("---\nname: a\ndescription: Use it: always\n---\nx", "a");
        assert_eq!((reading.document.description.as_str(), reading.faults), ("Use it: always", vec![]));
    }

    #[test]
    fn optional_things_are_warned_of_and_what_is_needed_is_refused() {
        let faults = |text: &str| read(text, "a").faults;
        assert_eq!(faults("# A"), ["it does not begin with `---`, its properties, and `---`"]);
        assert_eq!(faults("---\nname: a\n---\nx"), ["it has no `description`: no model would know when to use it"]);
        for name in ["A b", "-a", "a--b", ""] {
            assert!(
                faults(&format!("---\nname: \"{name}\"\ndescription: d\n---\nx"))[0].starts_with("its `name` must be")
            );
        }
        assert!(faults("---\nname: [\n---\nx")[0].starts_with("its properties are no YAML: "));
        let long = "d".repeat(DESCRIPTION + 1);
        let odd = read(&format!("---\nname: b\ndescription: {long}\n---\n"), "a");
        let warned = [
            "its name is `b`, and its folder `a`",
            "its description has 1025 characters; the first 1024 are used",
            "it has no instructions behind its properties",
        ];
        assert_eq!((odd.faults, odd.warnings), (vec![], warned.map(str::to_owned).to_vec()));
    }

    #[test]
    fn instructions_are_taken_at_their_longest_and_cut_one_character_beyond_it() {
        let of = |length: usize| read(&format!("---\nname: a\ndescription: d\n---\n{}", "x".repeat(length)), "a");
        assert_eq!(of(INSTRUCTIONS).warnings, [""; 0]);
        assert_eq!(
            (of(INSTRUCTIONS + 1).warnings.len(), of(INSTRUCTIONS + 1).document.instructions.len()),
            (1, INSTRUCTIONS)
        );
    }
    #[test]
    fn properties_are_kept_as_they_are_written() {
        let of = |properties: &str| read(&format!("---\n{properties}\n---\nx"), "a").document.frontmatter;
        let written =
            "name: a\ndescription: \" d \"\nx-team: [ops, 7]\nmetadata:\n  version: 2\n  nested: {deep: true}";
        let expected = json!({
            "name": "a", "description": " d ", "x-team": ["ops", 7],
            "metadata": { "version": 2, "nested": { "deep": true } },
        });
        assert_eq!(Value::from(of(written)), expected);
        let quoted = json!({ "name": "a", "description": "Use it: always" });
        assert_eq!(Value::from(of("name: a\ndescription: Use it: always")), quoted);
    }

    #[test]
    fn properties_are_kept_at_their_longest_and_name_and_description_one_byte_beyond_it() {
        let of = |bytes: usize| {
            let json = r#"{"name":"a","description":"d","x":""}"#.len();
            let text = "x".repeat(bytes - json);
            read(&format!("---\nname: a\ndescription: d\nx: {text}\n---\nx"), "a")
        };
        let longest = of(FRONTMATTER);
        assert_eq!((longest.document.frontmatter.len(), longest.warnings), (3, vec![]));
        let beyond = of(FRONTMATTER + 1);
        assert_eq!(Value::from(beyond.document.frontmatter), json!({ "name": "a", "description": "d" }));
        assert!(beyond.warnings[0].contains("more than 16384 bytes") && beyond.faults.is_empty());
    }
}
