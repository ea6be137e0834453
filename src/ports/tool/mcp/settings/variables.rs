//! The environment of MCP servers: `${NAME}` in their settings, and the variables that the service hands on to them.
//!
//! Both are read once, at the start. A program gets no other variable of the service, whose own settings may be
//! secrets.

use crate::base::invalid::{ValidationErrors, escape};
use crate::base::secret::Secret;
use crate::ports::tool::http::filled;
use crate::ports::tool::mcp::settings::McpServerDefinition;

/// The variables of the service that a program is given where its own settings do not name them.
pub const INHERITED: [&str; 11] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "NODE_EXTRA_CA_CERTS"];

/// Fills in all variables, `$${` standing for `${` itself, and hands on those of the service that programs need.
/// Pointers begin with `/mcp_servers`.
///
/// # Errors
/// Variables that are not set, and names that are none.
pub fn fill_variables(
    servers: &mut [McpServerDefinition],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    for (index, server) in servers.iter_mut().enumerate() {
        let place = format!("/mcp_servers/{index}");
        let mut fill = |below: String, text: &str| {
            filled(text, &variable).map_err(|why| faults.add(format!("{place}/{below}"), why)).ok()
        };
        for (number, word) in server.command.iter_mut().enumerate() {
            if let Some(done) = fill(format!("command/{number}"), word.as_str()) {
                *word = done;
            }
        }
        if let Some(url) = &mut server.url
            && let Some(done) = fill("url".to_owned(), url.as_str())
        {
            *url = done;
        }
        for (name, value) in &mut server.env {
            if let Some(done) = fill(format!("env/{}", escape(name)), value.expose()) {
                *value = Secret::new(done);
            }
        }
        inherit(server, &variable);
    }
    faults.into_result(())
}

/// Gives a program the variables that it needs and that its settings do not name.
fn inherit(server: &mut McpServerDefinition, variable: &impl Fn(&str) -> Option<String>) {
    if server.command.is_empty() {
        return;
    }
    for name in INHERITED {
        if let Some(value) = variable(name) {
            server.env.entry(name.to_owned()).or_insert_with(|| Secret::new(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn variable(name: &str) -> Option<String> {
        [("TOKEN", "a${b}"), ("HOST", "mcp.example.org"), ("PATH", "/usr/bin"), ("HOME", "/root"), ("SECRET", "no")]
            .into_iter()
            .find_map(|(known, value)| (known == name).then(|| value.to_owned()))
    }

    fn servers(written: Value) -> Vec<McpServerDefinition> {
        serde_json::from_value(written).unwrap()
    }

    #[test]
    fn variables_are_filled_in_once_and_a_program_is_given_those_that_it_needs() {
        let mut servers = servers(json!([
            { "name": "a", "command": ["run", "--to=${HOST}", "$${HOST}"], "env": { "KEY": "${TOKEN}", "HOME": "/srv" } },
            { "name": "b", "url": "https://${HOST}/mcp" },
        ]));
        fill_variables(&mut servers, variable).unwrap();
        assert_eq!(servers[0].command, ["run", "--to=mcp.example.org", "${HOST}"]);
        let env: Vec<(&str, &str)> =
            servers[0].env.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
        assert_eq!(env, [("HOME", "/srv"), ("KEY", "a${b}"), ("PATH", "/usr/bin")]);
        assert_eq!(servers[1].url.as_deref(), Some("https://mcp.example.org/mcp"));
        assert!(servers[1].env.is_empty());
    }

    #[test]
    fn variable_that_is_not_set_or_a_setting_of_the_service_is_named_with_its_place() {
        let mut servers = servers(json!([
            { "name": "a", "url": "https://${GONE}/" },
            { "name": "b", "command": ["run", "${"], "env": { "A/B": "${REVEILLE_DATABASE__URL}" } },
        ]));
        let faults = fill_variables(&mut servers, variable).unwrap_err();
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/mcp_servers/0/url", "/mcp_servers/1/command/1", "/mcp_servers/1/env/A~1B"]);
        assert!(faults.0[2].message.contains("a setting of the service itself"), "{faults}");
    }
}
