//! Descriptions of single fields of a request, and what follows from one: its schema in the document of the API, and
//! its flags on the command line.
//!
//! Data only: the domain describes its fields, `http` and `cli` read the descriptions and name no field.

use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

/// A flag by which a field, or a part of it, is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// The flag with its hyphens, such as `--slack-channel`.
    pub name: &'static str,
    /// The value that goes with it.
    pub takes: FlagValue,
    /// The field of the request that it writes, such as `addresses.slack.channel`.
    pub field: &'static str,
    /// Line of the help.
    pub help: &'static str,
}

/// The value of a flag; the help calls it by the text that stands here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagValue {
    /// A text.
    Text(&'static str),
    /// A text that may begin with a hyphen.
    Hyphened(&'static str),
    /// A whole number.
    Number(&'static str),
    /// A length of time such as `10m`; the field has it in seconds.
    Seconds(&'static str),
    /// None: the field becomes `true`.
    Nothing,
    /// None: a secret is read from standard input. It goes along with the flag of this name.
    StandardInput(&'static str),
}

/// Makes an enum of which JSON has exactly one value: an object with one field, which is named after it. Its schema is
/// an object that may have each of the fields.
macro_rules! one_of {
    (
        $(#[doc = $about:literal])+
        $(#[serde($closed:ident)])?
        $vis:vis enum $name:ident as $schema:literal {
            $($(#[doc = $doc:literal])+ $(#[schema($($more:tt)+)])? $variant:ident($value:ty) = $field:ident,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        $vis enum $name { $($(#[doc = $doc])+ $variant($value),)+ }

        impl $name {
            /// The names of the fields.
            pub const FIELDS: [&'static str; [$(stringify!($field)),+].len()] = [$(stringify!($field)),+];

            /// The name of the field that it stands in.
            pub fn field(&self) -> &'static str {
                match self {
                    $($name::$variant(_) => stringify!($field),)+
                }
            }
        }

        const _: () = {
            use utoipa::openapi::{RefOr, Schema};

            $(#[doc = $about])+
            #[derive(serde::Serialize, utoipa::ToSchema)]
            $(#[serde($closed)])?
            struct EachField {
                $(#[schema(required = false $(, $($more)+)?)] $(#[doc = $doc])+ $field: Option<$value>,)+
            }

            impl utoipa::PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    EachField::schema()
                }
            }

            impl utoipa::ToSchema for $name {
                fn name() -> std::borrow::Cow<'static, str> {
                    $schema.into()
                }

                fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
                    EachField::schemas(schemas);
                }
            }
        };
    };
}
pub(crate) use one_of;

/// The schema of one field, and of the parts that it refers to.
pub struct Form {
    /// An object with this one field.
    pub schema: fn() -> RefOr<Schema>,
    /// Adds the parts by their names.
    pub parts: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl Form {
    /// The form of a type with one field.
    pub fn of<T: ToSchema>() -> Form {
        Form { schema: T::schema, parts: T::schemas }
    }
}
