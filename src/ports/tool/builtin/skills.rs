//! `use_skill`, `leave_skill`, `read_skill_file`: instructions of the operator that a model takes when it needs them.
//! Which skills are active, the agent knows.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::approval::{Category, Consequence};
use crate::ports::skill::{SkillLibrary, unknown_skill};
use crate::ports::tool::builtin::read;
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolFailure, ToolOutput, ToolSource};

/// Name of the tool that activates a skill.
pub const USE_SKILL: &str = "use_skill";
/// Name of the tool that ends one.
pub const LEAVE_SKILL: &str = "leave_skill";
/// Name of the tool that reads a file of one.
pub const READ_SKILL_FILE: &str = "read_skill_file";
/// The tools of skills: they may be called whatever a skill allows.
pub const SKILL_TOOLS: [&str; 3] = [USE_SKILL, LEAVE_SKILL, READ_SKILL_FILE];
/// Characters of the list of a skill's files.
const FILE_LIST: usize = 4_000;
/// Characters of a file that are read at once.
const PAGE: usize = 30_000;

/// All of them.
pub fn all(library: &SkillLibrary) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(SkillTool::new(library, SkillAct::Use)),
        Arc::new(SkillTool::new(library, SkillAct::Leave)),
        Arc::new(SkillTool::new(library, SkillAct::Read)),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SkillAct {
    Use,
    Leave,
    Read,
}

struct SkillTool {
    definition: Definition,
    library: SkillLibrary,
    act: SkillAct,
}

#[derive(Deserialize)]
struct NamedSkill {
    name: String,
}

#[derive(Deserialize)]
struct SkillFile {
    skill: String,
    path: String,
    #[serde(default)]
    page: Option<usize>,
}

impl SkillTool {
    fn new(library: &SkillLibrary, act: SkillAct) -> SkillTool {
        let name = json!({ "type": "string", "minLength": 1, "maxLength": 64 });
        let (tool, description, parameters) = match act {
            SkillAct::Use => (
                USE_SKILL,
                "Read the instructions of a skill, and follow them from then on. Use it when your work is what the skill is for.",
                json!({ "type": "object", "properties": { "name": name }, "required": ["name"], "additionalProperties": false }),
            ),
            SkillAct::Leave => (
                LEAVE_SKILL,
                "End a skill that you use, once you are done with it: its limits on tools end with it.",
                json!({ "type": "object", "properties": { "name": name }, "required": ["name"], "additionalProperties": false }),
            ),
            SkillAct::Read => (
                READ_SKILL_FILE,
                "Read a file of a skill, which its instructions name. Scripts are not executed here; they can only be read.",
                json!({
                    "type": "object",
                    "properties": {
                        "skill": name, "path": { "type": "string", "minLength": 1, "maxLength": 500 },
                        "page": { "type": "integer", "minimum": 1, "maximum": 1_000, "description": "of a long file; absent: the first" },
                    },
                    "required": ["skill", "path"],
                    "additionalProperties": false,
                }),
            ),
        };
        let definition = Definition::new(tool, description, parameters, Category::Read, Consequence::Low);
        SkillTool { definition, library: library.clone(), act }
    }

    fn use_skill(&self, arguments: Value) -> Result<ToolOutput, ToolError> {
        let NamedSkill { name } = read(arguments)?;
        let set = self.library.current();
        let Some(skill) = set.find(&name) else { return Err(not_found(unknown_skill(&name, set.names()))) };
        let mut instructions = format!(
            "[Skill {name}] Follow these instructions until you leave the skill.\n{}",
            skill.document.instructions
        );
        if !skill.files.is_empty() {
            let listed: String = skill.files.join(", ").chars().take(FILE_LIST).collect();
            instructions += &format!("\nIts files ({READ_SKILL_FILE} reads them): {listed}");
        }
        Ok(ToolOutput::text(format!("The skill {name} is active.")).with_instructions(instructions))
    }

    async fn read_file(&self, arguments: Value) -> Result<ToolOutput, ToolError> {
        let SkillFile { skill, path, page } = read(arguments)?;
        let text = self.library.read_file(&skill, &path).await.map_err(not_found)?;
        let pages = text.chars().count().div_ceil(PAGE).max(1);
        let page = page.unwrap_or(1);
        if page > pages {
            return Err(not_found(format!("`{path}` has {pages} pages")));
        }
        let shown: String = text.chars().skip((page - 1) * PAGE).take(PAGE).collect();
        let instructions = format!("[Skill {skill}, {path}, page {page} of {pages}]\n{shown}");
        Ok(ToolOutput::text(format!("Page {page} of {pages}.")).with_instructions(instructions))
    }
}

fn not_found(message: String) -> ToolError {
    ToolError::for_model(ToolFailure::NotFound, "not_found", message)
}

impl Tool for SkillTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Builtin
    }

    fn call<'a>(&'a self, _: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            match self.act {
                SkillAct::Use => self.use_skill(arguments),
                SkillAct::Leave => {
                    let NamedSkill { name } = read(arguments)?;
                    Ok(ToolOutput::text(format!("The skill {name} is left.")))
                }
                SkillAct::Read => self.read_file(arguments).await,
            }
        })
    }
}
