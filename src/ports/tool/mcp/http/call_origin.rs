//! Where a call comes from, for the record of its credential's use.

use rmcp::model::{ClientJsonRpcMessage, GetExtensions, JsonRpcMessage};
use uuid::Uuid;

use crate::base::id::Tenant;
use crate::ports::vault::credentials::UsedSecrets;

/// The run that a call is made for. Travels beside the message, never in it.
#[derive(Clone)]
pub struct CallOrigin {
    /// Tenant of the run.
    pub tenant: Tenant,
    /// `None`: no run is behind the call.
    pub run_id: Option<Uuid>,
    /// Task of the run.
    pub task_id: Option<Uuid>,
    /// The secrets that the run has used, which the call adds to.
    pub used_secrets: UsedSecrets,
}

impl CallOrigin {
    /// The origin of a message; `None`: it is no call.
    pub fn of(message: &ClientJsonRpcMessage) -> Option<&CallOrigin> {
        match message {
            JsonRpcMessage::Request(request) => request.request.extensions().get::<CallOrigin>(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, NumberOrString};

    use super::*;

    #[test]
    fn origin_travels_beside_the_message_and_not_in_it() {
        let tenant = Tenant::new("ann-the-tenant").unwrap();
        let mut call = CallToolRequest::new(CallToolRequestParams::new("echo"));
        let bare = call.clone();
        call.extensions.insert(CallOrigin {
            tenant: tenant.clone(),
            run_id: Some(Uuid::nil()),
            task_id: None,
            used_secrets: UsedSecrets::default(),
        });
        let message = |call| JsonRpcMessage::request(ClientRequest::CallToolRequest(call), NumberOrString::Number(1));
        let (message, bare): (ClientJsonRpcMessage, ClientJsonRpcMessage) = (message(call), message(bare));
        assert_eq!(CallOrigin::of(&message.clone()).unwrap().tenant, tenant);
        assert!(CallOrigin::of(&bare).is_none());
        assert_eq!(serde_json::to_string(&message).unwrap(), serde_json::to_string(&bare).unwrap());
    }
}
