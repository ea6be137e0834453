//! All of a task that its owner decides, as it is stored: what fires, what is done, whom it is told, and the listed
//! fields.

/// Makes [`Spec`](super::Spec) and what reads, documents and types it of the list of fields.
macro_rules! task_fields {
    ($($(#[$about:meta])* $name:ident: $value:ty = $field:ty,)+) => {
        /// All of a task that its owner decides. One JSON form for API, CLI, files and storage.
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        pub struct Spec {
            /// The rule by which it fires.
            pub trigger: $crate::domain::trigger::Trigger,
            /// Name of the executor.
            pub executor: String,
            /// The work of the executor.
            pub action: $crate::domain::task::Action,
            /// Absent: the recipient's own order. Null: the result is told to nobody.
            #[serde(default, skip_serializing_if = "crate::domain::task::Output::is_default")]
            #[schema(value_type = Option<$crate::domain::task::output::OutputShape>)]
            pub output: $crate::domain::task::Output,
            $($(#[$about])* pub $name: $value,)+
        }

        /// Fields that the owner decides: the rest of a task is its state, and is not for another service.
        pub const DECIDED: [&str; 7 + [$(stringify!($name)),+].len()] =
            ["tenant_id", "key", "name", "trigger", "executor", "action", "output", $(stringify!($name)),+];

        /// The listed fields as they are read: `None` where a fault was found.
        pub(super) struct ListedFields {
            $($name: Option<$value>,)+
        }

        impl ListedFields {
            pub(super) fn read(reader: &mut DraftReader<'_>, was: Option<&Spec>) -> ListedFields {
                ListedFields {
                    $($name: reader.field(
                        stringify!($name),
                        <$field as TaskField>::read,
                        was.map(|was| &was.$name),
                        Some(<$field as TaskField>::default()),
                    ),)+
                }
            }

            /// The spec, where nothing is at fault.
            pub(super) fn spec(
                self,
                trigger: Option<$crate::domain::trigger::Trigger>,
                executor: Option<String>,
                action: Option<$crate::domain::task::Action>,
                output: Option<$crate::domain::task::Output>,
            ) -> Option<Spec> {
                Some(Spec {
                    trigger: trigger?,
                    executor: executor?,
                    action: action?,
                    output: output?,
                    $($name: self.$name?,)+
                })
            }
        }

        impl Spec {
            /// Whether a run that waits counts as running. One of a pipeline that stores values does: what it has read
            /// of them is to be the newest when it goes on.
            pub fn overlap_counts_waiting(&self) -> bool {
                let steps = self.action.config.get("steps").and_then(serde_json::Value::as_array);
                let stores = |step: &serde_json::Value| step.get("store").is_some_and(|store| !store.is_null());
                self.trigger.overlap_counts_waiting()
                    || self.executor == "pipeline" && steps.into_iter().flatten().any(stores)
            }

            /// The flags of each listed field, in the order of the list.
            pub const FLAGS: &'static [&'static [Flag]] = &[$(<$field as TaskField>::FLAGS),+];

            /// A task of this trigger for the usual executor, with every default.
            pub fn of(trigger: $crate::domain::trigger::Trigger) -> Spec {
                Spec {
                    trigger,
                    executor: $crate::domain::task::DEFAULT_EXECUTOR.into(),
                    action: Default::default(),
                    output: Default::default(),
                    $($name: <$field as TaskField>::default(),)+
                }
            }

            /// The schema of what a request writes: each field within its bounds, or else its default.
            pub fn request_schema() -> RefOr<Schema> {
                let mut schema = <Spec as utoipa::PartialSchema>::schema();
                if let RefOr::T(Schema::Object(object)) = &mut schema {
                    object.required.retain(|field| field == "trigger");
                    describe(object, "executor", None, $crate::domain::task::DEFAULT_EXECUTOR);
                    $(describe(
                        object,
                        stringify!($name),
                        <$field as TaskField>::RANGE,
                        <$field as TaskField>::default(),
                    );)+
                }
                schema
            }
        }
    };
}
