//! The page that asks once more before something is gone for good.

use serde_json::json;

use crate::http::ui::frame::failure::UiResult;
use crate::http::ui::frame::visit::Visit;

/// Something that is about to be deleted or stopped.
pub struct Removal<'a> {
    /// The title of the page, a question.
    pub title: &'a str,
    /// The thing, as its own page names it.
    pub thing: &'a str,
    /// Sentences about what goes with it, and what stays.
    pub consequences: &'a [&'a str],
    /// The address to which the button posts.
    pub action: &'a str,
    /// The words on the button.
    pub label: &'a str,
    /// The address of the page that led here.
    pub back: &'a str,
}

/// Shows the question.
///
/// # Errors
/// The template failed.
pub async fn ask(visit: &Visit, removal: Removal<'_>) -> UiResult {
    let Removal { title, thing, consequences, action, label, back } = removal;
    let page = json!({
        "thing": thing, "consequences": consequences, "action": action, "label": label, "back": back,
    });
    visit.show("removal.html", title, page).await
}
