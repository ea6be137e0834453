//! Skills that agents may use.

use serde::Serialize;

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{Call, Id, Items, Json, Query};
use crate::ports::skill::{Skill, UnusableSkill};

/// A skill, or a folder that should be one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct SkillView {
    /// Name of the skill; of a folder without a valid `SKILL.md`, its path.
    #[schema(example = "flight-check")]
    pub name: String,
    /// Its purpose, and when to use it.
    pub description: String,
    /// Whether agents may use it.
    pub usable: bool,
    /// Its folder, for an admin token alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The only tools that are used while it is active; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// The model that answers while it is active; absent: that of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its licence, as it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Its needs, as it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<String>,
    /// Its files, by their paths in its folder.
    pub files: Vec<String>,
    /// Reasons for which it can't be used, or oddities of one that can, such as names in it that are of no tool or
    /// model here.
    pub findings: Vec<String>,
}

/// A skill, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct WholeSkill {
    /// The skill, as the list has it.
    #[serde(flatten)]
    pub skill: SkillView,
    /// Its instructions, as a model is told them once it uses the skill.
    pub instructions: String,
}

/// The names that a skill may use, and whether its reader is the operator.
struct SkillReader<'a> {
    tools: &'a [&'a str],
    models: &'a [&'a str],
    is_operator: bool,
}

impl SkillView {
    fn of(skill: &Skill, reader: &SkillReader) -> SkillView {
        let document = &skill.document;
        SkillView {
            name: document.name.clone(),
            description: document.description.clone(),
            usable: true,
            folder: reader.is_operator.then(|| skill.dir.display().to_string()),
            allowed_tools: document.allowed_tools.clone(),
            model: document.model().map(str::to_owned),
            license: document.license.clone(),
            compatibility: document.compatibility.clone(),
            files: skill.files.clone(),
            findings: skill.findings(reader.tools, reader.models),
        }
    }

    fn of_unusable(unusable: &UnusableSkill) -> SkillView {
        SkillView {
            name: unusable.dir.display().to_string(),
            description: String::new(),
            usable: false,
            // its name is its folder
            folder: None,
            allowed_tools: None,
            model: None,
            license: None,
            compatibility: None,
            files: Vec::new(),
            findings: unusable.faults.clone(),
        }
    }
}

/// List skills
///
/// Those in the folders of `[skills] dir`, as they were a few seconds ago at the most, and folders without a valid
/// `SKILL.md`, with the reason.
#[utoipa::path(get, path = "/v1/skills", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<SkillView>)))]
pub async fn list_skills(Call(state, caller): Call, query: Query) -> Result<Json<Items<SkillView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let set = state.skills.current();
    let of_all = |reader: &SkillReader| {
        let usable = set.skills.iter().map(|skill| SkillView::of(skill, reader));
        usable.chain(set.unusable.iter().map(SkillView::of_unusable)).collect::<Vec<_>>()
    };
    Ok(Json(Items::whole(read_by(&state, caller.is_operator().is_ok(), of_all))))
}

/// Read a skill
///
/// As `GET /v1/skills` lists it, with its instructions. A folder without a valid `SKILL.md` is in the list alone.
#[utoipa::path(get, path = "/v1/skills/{name}", tag = "operations", security(("bearer" = ["tasks:read"])),
    params(("name" = String, Path, description = "Name of the skill")),
    responses((status = 200, body = WholeSkill)))]
pub async fn get_skill(Call(state, caller): Call, name: Id, query: Query) -> Result<Json<WholeSkill>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let set = state.skills.current();
    let skill = set.find(&name.0).ok_or(ApiError::NotFound("skill"))?;
    let view = read_by(&state, caller.is_operator().is_ok(), |reader: &SkillReader| SkillView::of(skill, reader));
    Ok(Json(WholeSkill { skill: view, instructions: skill.document.instructions.clone() }))
}

/// Reads skills with the names of the tools and models that there are now.
fn read_by<T>(state: &HttpState, is_operator: bool, read: impl FnOnce(&SkillReader) -> T) -> T {
    let (tools, models) = (state.tools.current(), state.pipeline.models().collect::<Vec<_>>());
    let known: Vec<&str> = tools.known_names().collect();
    read(&SkillReader { tools: &known, models: &models, is_operator })
}
