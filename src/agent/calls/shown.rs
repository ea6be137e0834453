//! Results as the model is shown them: as much as their level says, and with a reference where all of it is in a data file.
//!
//! All of a result goes to a data file where it is larger than [`LARGE`], where it would be cut before the model sees it, and
//! where the call asks for `full` and gets more than `standard` shows. The reference comes first, so that nothing cuts it off;
//! of a large result the beginning follows, of others what their level shows. A file is written before the transcript's row
//! that names it, under the key of its call: a call that is carried out once more after a crash writes its file anew. Where
//! `read_data_file` can't be called there is nobody to read a file, and none is written.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agent::context::ContextWindow;
use crate::base::id::Tenant;
use crate::domain::data_file::{FILE_BYTES, NewDataFile};
use crate::domain::run::ToolCall;
use crate::ports::tool::builtin::read_data_file::READ_DATA_FILE;
use crate::ports::tool::output::OutputLevel;
use crate::ports::tool::registry::Registered;
use crate::ports::tool::{ToolContext, ToolHost, ToolOutput, UsedSecrets};

/// Results of more bytes go to a data file, whatever their level.
pub const LARGE: usize = 1_024 * 1_024;
/// The beginning of a reference, and its end, behind which the result begins.
const REFERENCE: &str = "[Data file ";
const REFERENCE_END: &str = "]\n\n";

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
    pub async fn show(&self, turn: i64, call: &ToolCall, tool: &Registered, fetched: FetchedOutput) -> String {
        let FetchedOutput { output, level: named, .. } = fetched;
        let whole = output.whole();
        let level = tool.output_level().map(|own| own.of_call(named, self.is_context_full, self.usual_level));
        let shortened = level.and_then(|level| Some((level, level.shorten(&output, &whole)?)));
        let beginning = OutputLevel::Standard.shorten(&output, &whole);
        let is_large = whole.len() > LARGE;
        let is_cut = shortened.is_none() && self.window.cuts(&whole);
        let is_asked_for = named == Some(OutputLevel::Full) && beginning.is_some();
        let may_keep = self.may_keep && !tool.tool.reads_data_files();
        let reference = match may_keep && (is_large || is_cut || is_asked_for) {
            true => Some(self.keep(turn, call, &output).await),
            false => None,
        };
        match (reference, shortened) {
            (Some(Ok(reference)), Some((_, shown))) => reference + &shown,
            (Some(Ok(reference)), None) if is_large => reference + &beginning.unwrap_or_default(),
            (Some(Ok(reference)), None) => reference + &whole,
            (Some(Err(why)), None) => format!("[No data file was written: {why}{REFERENCE_END}{whole}"),
            (None | Some(Err(_)), Some((level, shown))) => format!("{shown}\n{}", level.hint(&whole)),
            (None, None) => whole.into_owned(),
        }
    }

    /// Writes a result to a data file; answers the line that refers to it, or why there is none.
    async fn keep(&self, turn: i64, call: &ToolCall, output: &ToolOutput) -> Result<String, String> {
        let (content, media_type) = output.content();
        if content.len() > FILE_BYTES {
            return Err(format!("the result has {} bytes, and a file has at most {FILE_BYTES}", content.len()));
        }
        if self.known.finds(&content).await {
            return Err("the result may hold a secret".into());
        }
        let (bytes, summary) = (content.len(), output.summary());
        let file = NewDataFile {
            run_id: self.run_id,
            call_key: ToolContext::key_of(self.run_id, turn, &call.id),
            tool: call.name.clone(),
            media_type,
            summary: summary.clone(),
            content: content.into_owned(),
        };
        let kept = self.host.keep_data_file(self.tenant, file).await;
        let id = kept.map_err(|error| error.to_string())?;
        Ok(format!(
            "{REFERENCE}{id}: all {bytes} bytes of the result, {media_type}: {summary}. Read parts of it with \
             {READ_DATA_FILE}{REFERENCE_END}"
        ))
    }
}

/// A result without its reference, which is another one each time.
pub fn without_reference(content: &str) -> &str {
    let referred = content.strip_prefix(REFERENCE).and_then(|rest| rest.split_once(REFERENCE_END));
    referred.map_or(content, |(_, result)| result)
}
