//! Data files, as tools write and read them.
//!
//! A page is read from the chunks that it lies in, and lines are searched one chunk after the other, on the threads for
//! what tenants ask to be computed. For a value of JSON the file is read whole, which is bounded, as are the files that
//! are held so at once; nothing but the value is kept.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::limiter::{Limit, Permit};
use crate::domain::data_file::page::page;
use crate::domain::data_file::pointer::value_at;
use crate::domain::data_file::search::LineSearch;
use crate::domain::data_file::{DataFile, DataFilePart, NewDataFile};
use crate::executor::host::{StoreHost, host_error};
use crate::ports::tool::HostError;
use crate::store::{CHUNK_BYTES, with_timeout};

/// Bytes that one search goes through at most; the next one goes on behind them.
const SEARCHED: u64 = 8 * 1_024 * 1_024;

impl StoreHost {
    pub(super) async fn keep_file(&self, tenant: &Tenant, file: &NewDataFile) -> Result<Uuid, HostError> {
        let quotas = with_timeout(self.store.quotas_of(tenant.as_str())).await.map_err(host_error)?;
        let kept = self.store.keep_data_file(tenant, file, quotas.data_file_bytes, self.lease);
        with_timeout(kept).await.map_err(host_error)
    }

    pub(super) async fn read_file(&self, tenant: &Tenant, id: Uuid, part: DataFilePart) -> Result<Value, HostError> {
        let file = with_timeout(self.store.use_data_file(tenant, id)).await.map_err(host_error)?;
        let file = file.ok_or(HostError::NotFound)?;
        let mut read = json!({ "file": id, "bytes": file.bytes, "media_type": file.media_type });
        let found = match part {
            DataFilePart::Page { offset, limit } => self.page(tenant, &file, offset, limit).await?,
            DataFilePart::Lines { pattern, offset } => self.lines(tenant, &file, &pattern, offset).await?,
            DataFilePart::Value { pointer, offset, limit } => self.value(tenant, &file, pointer, offset, limit).await?,
        };
        if let (Value::Object(read), Value::Object(found)) = (&mut read, found) {
            read.extend(found);
        }
        Ok(read)
    }

    async fn page(&self, tenant: &Tenant, file: &DataFile, offset: u64, limit: usize) -> Result<Value, HostError> {
        let first = offset / CHUNK_BYTES as u64;
        let last = offset.saturating_add(limit as u64) / CHUNK_BYTES as u64;
        let mut content = Vec::new();
        for number in first..=last.min(last_chunk(file)) {
            content.extend(self.chunk(tenant, file, number).await?);
        }
        let (begins, text) = page(&content, first * CHUNK_BYTES as u64, offset, limit);
        let next = begins + text.len() as u64;
        Ok(json!({ "offset": begins, "text": text, "next_offset": (next < file.bytes as u64).then_some(next) }))
    }

    async fn lines(&self, tenant: &Tenant, file: &DataFile, pattern: &str, offset: u64) -> Result<Value, HostError> {
        let invalid = |why: String| HostError::Invalid(ValidationErrors::one("/grep", why));
        let mut search = LineSearch::new(pattern, offset).map_err(invalid)?;
        let end = offset.saturating_add(SEARCHED).min(file.bytes as u64);
        let mut at = offset;
        while at < end && !search.is_done() {
            let number = at / CHUNK_BYTES as u64;
            let mut content = self.chunk(tenant, file, number).await?;
            content.drain(..(at - number * CHUNK_BYTES as u64) as usize);
            at += content.len() as u64;
            search = self
                .compute(tenant, move || {
                    search.feed(&content);
                    search
                })
                .await?;
        }
        let (lines, next) = search.end(at >= file.bytes as u64);
        Ok(json!({ "lines": lines, "next_offset": next }))
    }

    async fn value(
        &self,
        tenant: &Tenant,
        file: &DataFile,
        pointer: String,
        offset: u64,
        limit: usize,
    ) -> Result<Value, HostError> {
        let _held = self.whole_file(tenant).await;
        let mut content = Vec::with_capacity(file.bytes.max(0) as usize);
        for number in 0..=last_chunk(file) {
            content.extend(self.chunk(tenant, file, number).await?);
        }
        let named = pointer.clone();
        let found = self.compute(tenant, move || -> Result<Option<Value>, String> {
            let text = String::from_utf8_lossy(&content);
            let Some(value) = value_at(&text, &pointer)? else { return Ok(None) };
            let (begins, part) = page(value.as_bytes(), 0, offset, limit);
            let next = begins as usize + part.len();
            let is_whole = begins == 0 && next == value.len();
            let part = match is_whole {
                true => serde_json::from_str(part).unwrap_or_else(|_| json!(part)),
                false => json!(part),
            };
            Ok(Some(json!({
                "value": part, "offset": begins, "value_bytes": value.len(),
                "next_offset": (next < value.len()).then_some(next),
            })))
        });
        let invalid = |why: String| HostError::Invalid(ValidationErrors::one("/pointer", why));
        found.await?.map_err(invalid)?.ok_or_else(|| HostError::Conflict(format!("the file has no value at `{named}`")))
    }

    /// The right to hold a file whole, once there is one. A tenant has one at most, so that it keeps no other waiting.
    async fn whole_file(&self, tenant: &Tenant) -> Permit<Tenant> {
        loop {
            match self.whole_files.acquire([(tenant.clone(), Limit::Fixed(1))]) {
                Ok(permit) => return permit,
                Err(_) => self.whole_files.released().await,
            }
        }
    }

    async fn chunk(&self, tenant: &Tenant, file: &DataFile, number: u64) -> Result<Vec<u8>, HostError> {
        let chunk = with_timeout(self.store.data_file_chunk(tenant, file.id, number as i64)).await;
        // it was there a moment ago
        chunk.map_err(host_error)?.ok_or(HostError::NotFound)
    }

    async fn compute<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HostError> {
        let computed = self.store.computing().run(tenant.as_str(), work).await;
        computed.map_err(|panicked| HostError::Conflict(panicked.to_string()))
    }
}

fn last_chunk(file: &DataFile) -> u64 {
    (file.bytes.max(1) as u64 - 1) / CHUNK_BYTES as u64
}
