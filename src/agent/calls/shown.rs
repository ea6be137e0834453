//! Results as the model is shown them: as much as their level says, and with a reference where all of it is in a data file.
//!
//! All of a result goes to a data file where it is larger than [`LARGE`], where it would be cut before the model sees it, and
//! where the call asks for `full` and gets more than `standard` shows. The reference stands in the notice before the result:
//! nothing cuts it off, and the model reads it as words of the service. Of a large result a summary and the beginning are
//! shown, of others what their level shows. A file is written before the transcript's row that names it, under the key of its
//! call: a call that is carried out once more after a crash writes its file anew. Where `read_data_file` can't be called there
//! is nobody to read a file, and none is written.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agent::calls::notice::{data_file_notice, no_data_file_notice};
use crate::agent::context::ContextWindow;
use crate::base::id::Tenant;
use crate::domain::data_file::{FILE_BYTES, NewDataFile};
use crate::domain::run::ToolCall;
use crate::ports::tool::output::OutputLevel;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolContext, ToolHost, ToolOutput, UsedSecrets};

/// Results of more bytes go to a data file, whatever their level.
pub const LARGE: usize = 1_024 * 1_024;

/// A result of a tool, and when it came.
#[derive(Debug, Serialize, Deserialize)]
pub struct FetchedOutput {
    pub output: ToolOutput,
    pub at: DateTime<Utc>,
    /// The level that the call names.
    #[serde(skip)]
    pub level: Option<OutputLevel>,
}

impl FetchedOutput {
    /// As it is kept for the same call.
    pub fn written(&self) -> String {
        serde_json::to_string(self).expect("a result is JSON")
    }

    /// The result that was kept; `None`: it can't be read.
    pub fn read(written: &str) -> Option<FetchedOutput> {
        serde_json::from_str(written).ok()
    }
}

/// A result in two parts.
#[derive(Debug, PartialEq, Eq)]
pub struct ShownOutput {
    /// Words of the service about the result; empty: there are none.
    pub notice: String,
    /// The result, as far as it is shown.
    pub content: String,
}

/// All that says how much of a result is shown, and where the rest goes.
pub struct ResultView<'a> {
    pub window: ContextWindow,
    /// The level where neither the call nor its tool has one.
    pub usual_level: OutputLevel,
    pub is_context_full: bool,
    /// Whether the model can read a data file.
    pub may_keep: bool,
    pub tenant: &'a Tenant,
    pub run_id: Uuid,
    pub host: &'a Arc<dyn ToolHost>,
    pub known: &'a UsedSecrets,
}

impl ResultView<'_> {
    /// The result of a call as the model is to be shown it.
    pub async fn show(&self, turn: i64, call: &ToolCall, tool: &RegisteredTool, fetched: FetchedOutput) -> ShownOutput {
        let FetchedOutput { output, level: named, .. } = fetched;
        let whole = output.whole();
        let level = tool.output_level().map(|own| own.of_call(named, self.is_context_full, self.usual_level));
        let shortened = level.and_then(|level| Some((level, level.shorten(&output, &whole)?)));
        let beginning = OutputLevel::Standard.shorten(&output, &whole);
        let is_large = whole.len() > LARGE;
        let is_cut = shortened.is_none() && self.window.cuts(&whole);
        let is_asked_for = named == Some(OutputLevel::Full) && beginning.is_some();
        let may_keep = self.may_keep && !tool.tool.reads_data_files();
        let kept = match may_keep && (is_large || is_cut || is_asked_for) {
            true => Some(self.keep(turn, call, &output).await),
            false => None,
        };
        match (kept, shortened) {
            (Some(Ok(notice)), shortened) => {
                let shown = shortened.map(|(_, shown)| shown).or(beginning.filter(|_| is_large));
                // a result that is shortened and has a file is a large one
                let content = match shown {
                    Some(shown) => format!("{}\n\n{shown}", output.summary()),
                    None => whole.into_owned(),
                };
                ShownOutput { notice, content }
            }
            (Some(Err(why)), None) => ShownOutput { notice: no_data_file_notice(&why), content: whole.into_owned() },
            (None | Some(Err(_)), Some((level, content))) => ShownOutput { notice: level.hint(&whole), content },
            (None, None) => ShownOutput { notice: String::new(), content: whole.into_owned() },
        }
    }

    /// Writes a result to a data file; answers the notice that refers to it, or why there is none.
    async fn keep(&self, turn: i64, call: &ToolCall, output: &ToolOutput) -> Result<String, String> {
        let (content, media_type) = output.content();
        if content.len() > FILE_BYTES {
            return Err(format!("the result has {} bytes, and a file has at most {FILE_BYTES}", content.len()));
        }
        if self.known.finds(&content).await {
            return Err("the result may hold a secret".into());
        }
        let bytes = content.len();
        let file = NewDataFile {
            run_id: self.run_id,
            call_key: ToolContext::key_of(self.run_id, turn, &call.id),
            tool: call.name.clone(),
            media_type,
            summary: output.summary(),
            content: content.into_owned(),
        };
        let kept = self.host.keep_data_file(self.tenant, file).await;
        let id = kept.map_err(|error| error.to_string())?;
        Ok(data_file_notice(id, bytes, media_type))
    }
}
