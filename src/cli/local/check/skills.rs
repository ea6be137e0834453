//! Skills: those that agents may use, what is wrong with them, and those that agents name in vain.

use super::Finding;
use crate::app::ConfiguredNames;
use crate::app::warnings::missing_skills;
use crate::base::unicode_safety::on_one_line;
use crate::config::Config;
use crate::ports::skill::{SkillSet, scan};

const NAME: &str = "skills";

/// Looks at the folders. `names`: those of the tools and models that there are; `None`: nobody knows them, and names in
/// skills are not judged.
pub async fn all(config: &Config, names: Option<&ConfiguredNames>) -> Vec<Finding> {
    let dirs = config.skills.dirs();
    let shown = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    let Ok(set) = tokio::task::spawn_blocking(move || scan(&dirs)).await else {
        return vec![Finding::warning(NAME, "the folders can't be looked at")];
    };
    let mut odd = oddities(&set, names);
    odd.extend(missing_skills(&config.agents, &set));
    match (shown.is_empty(), set.skills.len()) {
        (false, 0) if odd.is_empty() => odd.push(format!("no folder in {shown} has a SKILL.md")),
        (false, 1) if odd.is_empty() => return vec![Finding::ok(NAME, format!("1 in {shown}"))],
        (false, many) if odd.is_empty() => return vec![Finding::ok(NAME, format!("{many} in {shown}"))],
        _ => {}
    }
    odd.iter().map(|odd| Finding::warning(NAME, on_one_line(odd))).collect()
}

/// Oddities of skills, each behind the skill's name, and the reasons for which folders hold none.
fn oddities(set: &SkillSet, names: Option<&ConfiguredNames>) -> Vec<String> {
    let usable = set.skills.iter().flat_map(|skill| {
        let findings = names.map_or_else(|| skill.warnings.clone(), |names| names.findings(skill));
        findings.into_iter().map(move |finding| format!("{}: {finding}", skill.document.name))
    });
    let unusable = set.unusable.iter().flat_map(|unusable| {
        unusable.faults.iter().map(move |fault| format!("{} holds no skill: {fault}", unusable.dir.display()))
    });
    usable.chain(unusable).collect()
}
