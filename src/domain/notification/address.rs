//! Kinds of addresses: the port of one kind, and what follows from the list of them in `recipient`.
//!
//! A kind says how its address is written, stored, shown, documented and typed. The stored document, the reader of a
//! request, the schema of the API and the flags of the command line follow from that; none of them names a kind.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::base::field::Flag;
use crate::base::invalid::ValidationErrors;
use crate::domain::notification::recipient::Seal;

/// One kind of address, with the channel of the same name.
pub trait AddressKind {
    /// The address as it was asked for, checked; the default stands for none.
    type Draft: Debug + Clone + Default;
    /// The address as it is stored, its secrets sealed; the default stands for none.
    type Stored: Debug + Clone + Default + PartialEq + Serialize + DeserializeOwned;
    /// Schema of what a request writes: an object with the one field of this kind.
    type Written: ToSchema;
    /// Schema of what an answer shows: an object with the one field of this kind.
    type Shown: ToSchema;

    /// Flags of `reveille recipient set`.
    const FLAGS: &'static [Flag];

    /// Reads the field of this kind among the addresses. Every fault is added with its place and what would be right.
    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Self::Draft;

    /// The address to be stored in the place of `old`: new secrets sealed, those that are not given kept.
    fn settle<S: Seal>(draft: Self::Draft, old: &Self::Stored, seal: &S) -> Result<Self::Stored, S::Error>;

    /// The document that is shown of an address: everything but the secrets.
    fn public(stored: &Self::Stored) -> Value {
        json!(stored)
    }

    /// Where an address leads to, as a document that is another for every other place.
    fn identity(stored: &Self::Stored) -> Value {
        Self::public(stored)
    }

    /// Each place that messages go to, as a text that is the same for the same place.
    fn places(stored: &Self::Stored) -> Vec<String>;
}

/// Whether a stored address stands for none.
pub(crate) fn is_none<T: Default + PartialEq>(address: &T) -> bool {
    *address == T::default()
}

/// Makes [`Addresses`](crate::domain::notification::Addresses) and its draft of the list of kinds. Faults, schema and
/// flags come in the order of the list; behind it stands the order in which channels are tried.
macro_rules! address_kinds {
    ($($(#[$about:meta])* $name:ident: $kind:ty),+; tried as $($tried:ident),+) => {
        /// One address for each kind of channel, as it is stored. Secrets among them are sealed.
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct Addresses {
            $(
                $(#[$about])*
                #[serde(default, skip_serializing_if = "crate::domain::notification::address::is_none")]
                pub $name: <$kind as AddressKind>::Stored,
            )+
        }

        /// The addresses as they were asked for, checked.
        #[derive(Debug, Clone, Default)]
        pub struct AddressesDraft {
            $($(#[$about])* pub $name: <$kind as AddressKind>::Draft,)+
        }

        impl Addresses {
            /// The kinds of address, each with the channel of that name, in the order in which they are tried where a
            /// recipient names none: what costs money or has few words comes late.
            pub const KINDS: [&'static str; [$(stringify!($name)),+].len()] = [$(stringify!($tried)),+];
            /// The flags of each kind, in the order of the list.
            pub const FLAGS: &'static [(&'static str, &'static [Flag])] =
                &[$((concat!("addresses.", stringify!($name)), <$kind as AddressKind>::FLAGS)),+];

            /// Whether there is an address of this kind, such as `email`.
            pub fn has(&self, kind: &str) -> bool {
                match kind {
                    $(stringify!($name) => !crate::domain::notification::address::is_none(&self.$name),)+
                    _ => false,
                }
            }

            /// Each place that messages go to, as a text that is the same for the same place. Sessions are the tenant's
            /// own, and a webhook of Slack can't be told from another while it is sealed.
            pub fn places(&self) -> Vec<String> {
                [$(<$kind as AddressKind>::places(&self.$name)),+].concat()
            }

            /// Schemas of what a request writes, kind by kind.
            pub fn request_forms() -> Vec<Form> {
                vec![$(Form::of::<<$kind as AddressKind>::Written>()),+]
            }

            /// Schemas of what an answer shows, kind by kind.
            pub fn answer_forms() -> Vec<Form> {
                vec![$(Form::of::<<$kind as AddressKind>::Shown>()),+]
            }

            fn public_of(&self, kind: &str) -> Value {
                match kind {
                    $(stringify!($name) => <$kind as AddressKind>::public(&self.$name),)+
                    _ => Value::Null,
                }
            }

            fn identity_of(&self, kind: &str) -> Value {
                match kind {
                    $(stringify!($name) => <$kind as AddressKind>::identity(&self.$name),)+
                    _ => Value::Null,
                }
            }
        }

        impl AddressesDraft {
            fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> AddressesDraft {
                only(kinds, "/addresses", &Addresses::KINDS, faults);
                AddressesDraft { $($name: <$kind as AddressKind>::read(kinds, faults),)+ }
            }

            /// The addresses to be stored in the place of `old`: new secrets sealed, those that are not given kept.
            fn settle<S: Seal>(self, old: &Addresses, seal: &S) -> Result<Addresses, S::Error> {
                Ok(Addresses { $($name: <$kind as AddressKind>::settle(self.$name, &old.$name, seal)?,)+ })
            }
        }
    };
}
pub(crate) use address_kinds;
