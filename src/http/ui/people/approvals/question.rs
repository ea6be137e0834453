//! The page of an approval: the questions that are asked together, each with its form, as the link page shows them.
//!
//! The API says whether the reader may see them. The questions are read as the link page reads them, because its forms
//! are made of them.

use axum::extract::Path;
use axum::http::StatusCode;
use chrono_tz::Tz;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::token::Permission;
use crate::http::error::ApiError;
use crate::http::pages::approve::approval_page::{ApprovalPage, ApprovalReader, FormState, is_paused};
use crate::http::pages::approve::item::ItemView;
use crate::http::pages::approve::page_room::{PageQuestion, digests};
use crate::http::pages::approve::view;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::people::approvals::line::shorten;
use crate::ports::channel::templates::phrases::Phrases;

/// Purpose of the nonce of a page.
const NONCE: &str = "approval-dashboard";
/// Questions of a run, and messages about it, that the page lists.
const LISTED: usize = 50;
/// Kinds of the messages that ask.
const ASKING: [&str; 2] = ["ask", "reminder"];

/// A question and those that are asked together with it.
pub struct AskedQuestion {
    /// Its id.
    pub id: String,
    /// The owner of the run.
    pub tenant: String,
    /// The question as the API shows it, without its arguments.
    line: Value,
    scope: Scope,
    /// In the order of the calls; without the question itself where it was replaced.
    questions: Vec<PageQuestion>,
}

/// The page of an approval.
pub async fn show(visit: Visit, Path(id): Path<String>) -> UiResult {
    let asked = AskedQuestion::read(&visit, &id).await?;
    let paused = is_paused(&visit.state, &asked.scope, &asked.questions).await.map_err(ApiError::from)?;
    let notice = paused.then(|| words().get("paused").to_owned());
    asked.page(&visit, asked.items(), notice, StatusCode::OK).await
}

/// The words of the page.
pub fn words() -> &'static Phrases {
    Phrases::english()
}

impl AskedQuestion {
    /// Reads a question that the reader may see.
    ///
    /// # Errors
    /// There is none, or it can't be read now.
    pub async fn read(visit: &Visit, id: &str) -> Result<AskedQuestion, UiError> {
        let mut line = visit.get(&["v1", "approvals", id], &[]).await?;
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let (id, tenant, batch) = (text("id"), text("tenant_id"), text("batch_id"));
        let batch = Uuid::try_parse(&batch).map_err(|error| UiError::internal(&error.to_string()))?;
        let scope = Tenant::stored(tenant.clone()).map(Scope::Only).map_err(|log| UiError::internal(&log))?;
        let read = visit.state.store.approvals_of_batch(&tenant, batch).await.map_err(ApiError::from)?;
        shorten(&mut line);
        Ok(AskedQuestion { id, tenant, line, scope, questions: read.into_iter().map(PageQuestion::from).collect() })
    }

    /// Makes the questions as they are at first; this is computed.
    pub fn items(&self) -> impl FnOnce() -> Vec<ItemView> + Send + use<> {
        let questions = self.questions.clone();
        move || ItemView::of_batch(&questions, words())
    }

    /// The proof that a form is that of this page: it binds the session, and every question with its digest.
    pub fn nonce(&self, visit: &Visit) -> String {
        visit.state.vault.tag(NONCE, &self.nonce_subject(visit))
    }

    /// Whether it is the proof of this page as it is now.
    pub fn is_nonce(&self, visit: &Visit, nonce: &str) -> bool {
        visit.state.vault.is_tag(NONCE, &self.nonce_subject(visit), nonce)
    }

    fn nonce_subject(&self, visit: &Visit) -> String {
        visit.form_token().to_owned() + &digests(&self.questions)
    }

    /// The page with these questions. It is made of what tenants wrote, so it is made where that is computed.
    ///
    /// # Errors
    /// It can't be made now.
    pub async fn page(
        &self,
        visit: &Visit,
        items: impl FnOnce() -> Vec<ItemView> + Send + 'static,
        notice: Option<String>,
        status: StatusCode,
    ) -> UiResult {
        let content = async {
            let Some(first) = self.questions.first() else {
                return Ok::<_, UiError>((
                    words().get("replaced").to_owned(),
                    json!({ "cards": [], "replaced": true }),
                ));
            };
            let reader = ApprovalReader { name: visit.caller.name(), zone: Tz::UTC, words: words().clone() };
            let scene = ApprovalPage::of(&visit.state, &self.scope, reader, &first.approval).await;
            self.content(visit, scene.map_err(ApiError::from)?, items, notice).await
        };
        let (content, of_run, messages) = tokio::join!(content, self.of_run(visit), self.messages(visit));
        let (title, mut page) = content?;
        let is_shown = self.questions.iter().any(|question| question.approval.id.to_string() == self.id);
        page["replaced"] = (!is_shown).into();
        page["asked"] = self.line.clone();
        page["of_run"] = of_run;
        page["messages"] = messages;
        visit.show_as(status, "approval.html", title, page).await
    }

    async fn content(
        &self,
        visit: &Visit,
        scene: ApprovalPage,
        items: impl FnOnce() -> Vec<ItemView> + Send + 'static,
        notice: Option<String>,
    ) -> Result<(String, Value), UiError> {
        let may_decide = visit.holds(Permission::ApprovalsDecide);
        let action = format!("/ui/approvals/{}/decision", self.id);
        let form = may_decide.then(|| FormState { action, nonce: self.nonce(visit) });
        let shown = move || {
            let items = items();
            let title = view::title(&scene.words, &items, scene.now).to_owned();
            view::content(&scene, &items, notice.as_deref(), form.as_ref()).map(|content| (title, content))
        };
        let shown = visit.state.compute_for(&self.tenant, shown).await?;
        shown.map_err(|error| UiError::internal(&error.to_string()))
    }

    /// All that the run has asked, newest first: who decided, when and how.
    async fn of_run(&self, visit: &Visit) -> Value {
        let run = self.line["run_id"].as_str().unwrap_or_default().to_owned();
        let mut part = visit.part(&["v1", "approvals"], &[("run_id", run), ("limit", LISTED.to_string())]).await;
        if let Value::Array(items) = &mut part["answer"]["items"] {
            items.iter_mut().for_each(shorten);
        }
        part
    }

    /// The messages that ask, with the reminders.
    async fn messages(&self, visit: &Visit) -> Value {
        let run = self.line["run_id"].as_str().unwrap_or_default().to_owned();
        let mut part = visit.part(&["v1", "deliveries"], &[("run_id", run), ("limit", LISTED.to_string())]).await;
        if let Value::Array(items) = &mut part["answer"]["items"] {
            items.retain(|delivery| delivery["kind"].as_str().is_some_and(|kind| ASKING.contains(&kind)));
        }
        part
    }
}
