//! Sessions that a tenant has open: an address that is there or not.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::reading::flag;
use super::secrets::Seal;
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::domain::notification::AddressKind;

/// The address of the channel `live`.
pub struct Live;

/// Open sessions as a request writes them.
#[derive(Serialize, ToSchema)]
pub struct Written {
    /// Whether sessions that the tenant has open are told.
    #[schema(required = false, default = false)]
    live: bool,
}

/// Open sessions as they are shown.
#[derive(Serialize, ToSchema)]
pub struct Shown {
    #[schema(required = false)]
    live: bool,
}

impl AddressKind for Live {
    type Draft = bool;
    type Stored = bool;
    type Written = Written;
    type Shown = Shown;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--live",
        takes: FlagValue::Nothing,
        field: "addresses.live",
        help: "Tell sessions that the tenant has open",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> bool {
        flag(kinds, "live", "/addresses", faults)
    }

    fn settle<S: Seal>(draft: bool, _: &bool, _: &S) -> Result<bool, S::Error> {
        Ok(draft)
    }

    /// Sessions are the tenant's own.
    fn places(_: &bool) -> Vec<String> {
        vec![]
    }
}
