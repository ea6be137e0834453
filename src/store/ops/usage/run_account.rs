//! The account of a run: how long it was executed, the records of its calls of tools, and the findings about its
//! answers.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::run::transcript::ModelTokens;
use crate::domain::run::{ToolRecord, ToolWarning};
use crate::store::{Split, Store, StoreError};

/// Records that are read of one run; its transcript has all calls.
pub const TOOL_RECORDS: i64 = 500;

/// Answers of one run whose findings are read.
const VERDICTS: i64 = 100;

/// Time and calls of tools of a run, besides its usage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunAccount {
    /// Time of all executions that have ended, in milliseconds.
    pub execution_ms: i64,
    /// Calls of tools in the order in which their results were stored, [`TOOL_RECORDS`] at most.
    pub tool_records: Vec<ToolRecord>,
    /// Warnings of these calls, and then findings of verifiers, of 100 answers at most.
    pub tool_warnings: Vec<ToolWarning>,
}

impl Store {
    /// The account of a run; nothing of a run outside the scope.
    pub async fn run_account(&self, scope: &Scope, run_id: Uuid) -> Result<RunAccount, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let execution_ms: Option<i64> = read
            .query("select execution_ms from runs where id = $1 and ($2 is null or tenant_id = $2)")
            .bind(run_id)
            .bind(scope.tenant())
            .optional_scalar()
            .await?;
        let Some(execution_ms) = execution_ms else { return Ok(RunAccount::default()) };
        // planned each time: a plan that was made while there were no transcripts would read all of them
        let records: Vec<String> =
            read.query(RECORDS).bind(run_id).bind(TOOL_RECORDS).persistent(false).scalars().await?;
        let verdicts: Vec<String> =
            read.query(VERDICTS_OF).bind(run_id).bind(VERDICTS).persistent(false).scalars().await?;
        read.end().await?;
        // an account, on which nothing hangs: a record that can't be read is left out
        let tool_records: Vec<ToolRecord> =
            records.iter().filter_map(|record| serde_json::from_str(record).ok()).collect();
        let verdicts = verdicts.iter().filter_map(|entry| serde_json::from_str(entry).ok());
        let findings = verdicts.flat_map(|entry| ToolWarning::of(&entry));
        let tool_warnings = ToolWarning::of_calls(&tool_records).chain(findings).collect();
        Ok(RunAccount { execution_ms, tool_records, tool_warnings })
    }
}

impl Store {
    /// Tokens of all calls of models of a run that are on its record; nothing of a run outside the scope.
    pub async fn tokens_of_run(&self, scope: &Scope, run_id: Uuid) -> Result<ModelTokens, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        // planned each time: a plan that was made while there were no transcripts would read all of them
        let sums: (i64, i64, i64, i64, i64) =
            read.query(TOKENS).bind(run_id).bind(scope.tenant()).persistent(false).one().await?;
        read.end().await?;
        let (input, output, cache_read, cache_write, reasoning) = sums;
        Ok(ModelTokens { input, output, cache_read, cache_write, reasoning })
    }
}

const TOKENS: &str = "
    select cast(coalesce(sum(input_tokens), 0) as bigint), cast(coalesce(sum(output_tokens), 0) as bigint),
           cast(coalesce(sum(cache_read_tokens), 0) as bigint), cast(coalesce(sum(cache_write_tokens), 0) as bigint),
           cast(coalesce(sum(reasoning_tokens), 0) as bigint)
      from turns
     where run_id = $1 and exists (select 1 from runs where id = $1 and ($2 is null or tenant_id = $2))";

const RECORDS: &str = "
    select cast(tool_record as text) from turns where run_id = $1 and tool_record is not null order by seq limit $2";

/// On SQLite an entry that is no JSON any more would fail the whole statement; it is left out.
const VERDICTS_OF: Split = Split {
    postgres: "select cast(body as text) from turns where run_id = $1 and body ->> 'role' = 'verdict' order by seq limit $2",
    sqlite: "select cast(body as text) from turns
              where run_id = $1 and case when json_valid(body) then body ->> 'role' = 'verdict' else false end
              order by seq limit $2",
};
