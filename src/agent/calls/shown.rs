//! Results as the model is shown them: as much as their level says, and with a reference where all of it is in a data
//! file.
//!
//! All of a result goes to a data file where it is larger than [`LARGE`], where it would be cut before the model sees
//! it, and where the call asks for `full` and gets more than `standard` shows. The reference stands in the notice
//! before the result: nothing cuts it off, and the model reads it as words of the service. Of a large result a summary
//! and the beginning are shown, of others what their level shows. A file is written before the transcript's row that
//! names it, under the key of its call: a call that is carried out once more after a crash writes its file anew. Where
//! `read_data_file` can't be called there is nobody to read a file, and none is written.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::agent::calls::OUTCOME_SHOWN;
use crate::agent::calls::notice::{data_file_notice, no_data_file_notice};
use crate::agent::context::ContextWindow;
use crate::base::compute::Compute;
use crate::base::id::Tenant;
use crate::domain::data_file::{FILE_BYTES, NewDataFile};
use crate::domain::run::{ResultNotice, ToolCall};
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

/// A result in two parts, and how it begins.
#[derive(Debug, PartialEq, Eq)]
pub struct ShownOutput {
    /// Words of the service about the result.
    pub notice: Option<ResultNotice>,
    /// The result, as far as it is shown.
    pub content: String,
    /// The beginning of all of it, for whoever has approved the call.
    pub beginning: String,
    /// Characters of all of it.
    pub length: usize,
}

/// A result as text, and as much of it as may be shown: what takes the longer the longer the result is.
struct WrittenOutput {
    output: ToolOutput,
    whole: String,
    /// As its level shows it; `None`: whole.
    shortened: Option<(OutputLevel, String)>,
    /// As `standard` shows it; `None`: whole.
    standard: Option<String>,
    /// Whether the model would see a part of it only.
    is_cut: bool,
    beginning: String,
    length: usize,
}

/// A result that is in a data file.
struct KeptOutput {
    notice: ResultNotice,
    summary: String,
}

impl WrittenOutput {
    fn of(output: ToolOutput, level: Option<OutputLevel>, window: ContextWindow) -> WrittenOutput {
        let whole = output.whole().into_owned();
        let shortened = level.and_then(|level| Some((level, level.shorten(&output, &whole)?)));
        let standard = OutputLevel::Standard.shorten(&output, &whole);
        let is_cut = shortened.is_none() && window.cuts(&whole);
        let (beginning, length) = (whole.chars().take(OUTCOME_SHOWN).collect(), whole.chars().count());
        WrittenOutput { output, whole, shortened, standard, is_cut, beginning, length }
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
    pub used_secrets: &'a UsedSecrets,
    /// Threads for long results.
    pub compute: &'a Compute,
}

impl ResultView<'_> {
    /// The result of a call as the model is to be shown it.
    pub async fn show(
        &self,
        turn: i64,
        call: &ToolCall,
        tool: Option<&RegisteredTool>,
        fetched: FetchedOutput,
    ) -> ShownOutput {
        let FetchedOutput { output, level: named, .. } = fetched;
        let level = tool.and_then(RegisteredTool::output_level);
        let level = level.map(|own| own.of_call(named, self.is_context_full, self.usual_level));
        let (steps, window) = (output.steps(), self.window);
        let written = match self.computed(steps, move || WrittenOutput::of(output, level, window)).await {
            Ok(written) => written,
            Err(why) => {
                return ShownOutput { notice: None, length: why.len(), beginning: why.clone(), content: why };
            }
        };
        let WrittenOutput { output, whole, shortened, standard, is_cut, beginning, length } = written;
        let is_large = whole.len() > LARGE;
        let is_asked_for = named == Some(OutputLevel::Full) && standard.is_some();
        let may_keep = self.may_keep && tool.is_some_and(|tool| !tool.tool.reads_data_files());
        let kept = match may_keep && (is_large || is_cut || is_asked_for) {
            true => Some(self.keep(turn, call, output).await),
            false => None,
        };
        let (notice, content) = match (kept, shortened) {
            (Some(Ok(KeptOutput { notice, summary })), shortened) => {
                let shown = shortened.map(|(_, shown)| shown).or(standard.filter(|_| is_large));
                // a result that is shortened and has a file is a large one
                (Some(notice), shown.map_or(whole, |shown| format!("{summary}\n\n{shown}")))
            }
            (Some(Err(why)), None) => (Some(no_data_file_notice(&why)), whole),
            (None | Some(Err(_)), Some((level, content))) => (Some(ResultNotice::other(level.hint(&whole))), content),
            (None, None) => (None, whole),
        };
        ShownOutput { notice, content, beginning, length }
    }

    /// Computes on a result where it is short, and else on a computing thread, in its tenant's turn.
    async fn computed<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let computed = self.compute.run_if_costly(self.tenant.as_str(), steps, work).await;
        computed.map_err(|panicked| format!("the result can't be shown: {panicked}"))
    }

    /// Writes a result to a data file; answers the notice that refers to it, or why there is none.
    async fn keep(&self, turn: i64, call: &ToolCall, output: ToolOutput) -> Result<KeptOutput, String> {
        let write = |output: ToolOutput| {
            let (content, media_type) = output.content();
            (content.into_owned(), media_type, output.summary())
        };
        let (content, media_type, summary) = self.computed(output.steps(), move || write(output)).await?;
        if content.len() > FILE_BYTES {
            return Err(format!("the result has {} bytes, and a file has at most {FILE_BYTES}", content.len()));
        }
        if self.used_secrets.finds(&content).await {
            return Err("the result may hold a secret".into());
        }
        let bytes = content.len();
        let file = NewDataFile {
            run_id: self.run_id,
            call_key: ToolContext::key_of(self.run_id, turn, &call.id),
            tool: call.name.clone(),
            media_type: media_type.into(),
            summary: summary.clone(),
            content,
        };
        let kept = self.host.keep_data_file(self.tenant, file).await;
        let id = kept.map_err(|error| error.to_string())?;
        Ok(KeptOutput { notice: data_file_notice(id, bytes, media_type), summary })
    }
}
