//! The person behind a vote: where several have to agree, people are counted, and not their links and tokens.
//!
//! A voter is known by identities: the tenant whose link or token it is, the places where that tenant is reached, the
//! token that a token descends from. Two voters who share a mark count as one person, because one person may be both.

use std::collections::BTreeSet;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::domain::notification::Addresses;

/// Bytes of the hash that stands for a place.
const PLACE_HASH: usize = 16;

/// Everything by which a voter is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VoterIdentities(BTreeSet<String>);

/// A vote that agrees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// As the record names the voter: `recipient:<id>`, `token:<id>`.
    pub by: String,
    /// Marks by which the voter is counted as a person.
    pub identities: VoterIdentities,
}

impl VoterIdentities {
    /// Those of a voter of whom no more is known than the name on record.
    pub fn of_name(name: &str) -> VoterIdentities {
        VoterIdentities(BTreeSet::from([name.to_owned()]))
    }

    /// Those of a tenant: itself, and each place where it is reached. A place is kept as a hash, because a vote is no
    /// address book.
    pub fn of_tenant(tenant: &str, addresses: Option<&Addresses>) -> VoterIdentities {
        let places = addresses.map(Addresses::places).unwrap_or_default();
        let hashed = |place: String| {
            let hash = digest(&SHA256, place.as_bytes());
            format!("place:{}", hex::encode(&hash.as_ref()[..PLACE_HASH]))
        };
        VoterIdentities(places.into_iter().map(hashed).chain([format!("tenant:{tenant}")]).collect())
    }

    /// These identities and the token that the voter descends from.
    pub fn with_root(mut self, root: &str) -> VoterIdentities {
        self.0.insert(root.to_owned());
        self
    }

    /// Whether one person may be behind both.
    pub fn overlaps(&self, other: &VoterIdentities) -> bool {
        !self.0.is_disjoint(&other.0)
    }
}

impl Vote {
    /// The vote's identities; one that was stored without any is known by its name.
    fn known_by(&self) -> VoterIdentities {
        if self.identities.0.is_empty() { VoterIdentities::of_name(&self.by) } else { self.identities.clone() }
    }

    /// Whether one person may be behind this vote and these identities.
    pub fn may_be_of(&self, identities: &VoterIdentities) -> bool {
        self.known_by().overlaps(identities)
    }
}

/// How many people agree for certain: of votes that share a mark one counts. Those that are known by the least come
/// first, so that a vote which is tied to two people takes the place of neither.
pub fn distinct_people(votes: &[Vote]) -> usize {
    let mut known: Vec<VoterIdentities> = votes.iter().map(Vote::known_by).collect();
    known.sort_by_key(|identities| identities.0.len());
    let mut counted: Vec<VoterIdentities> = Vec::new();
    for identities in known {
        if !counted.iter().any(|other| other.overlaps(&identities)) {
            counted.push(identities);
        }
    }
    counted.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vote(by: &str, identities: VoterIdentities) -> Vote {
        Vote { by: by.into(), identities }
    }

    fn reached(tenant: &str, email: &str) -> VoterIdentities {
        let addresses: Addresses = serde_json::from_value(json!({ "email": email })).unwrap();
        VoterIdentities::of_tenant(tenant, Some(&addresses))
    }

    #[test]
    fn people_are_counted_and_not_their_links_and_tokens() {
        let ann = || vote("recipient:ann", reached("ann", "ann@example.org"));
        let her_token = |id: &str| vote(id, reached("ann", "ann@example.org").with_root("token:1"));
        let boss = |email: &str| vote("recipient:boss", reached("boss", email));
        let admin = |id: &str| vote(id, VoterIdentities::of_name("token:9"));
        assert_eq!(distinct_people(&[]), 0);
        assert_eq!(distinct_people(&[her_token("token:1"), her_token("token:2")]), 1);
        assert_eq!(distinct_people(&[ann(), her_token("token:2")]), 1);
        assert_eq!(distinct_people(&[ann(), boss("boss@example.org")]), 2);
        assert_eq!(distinct_people(&[ann(), boss("Ann@Example.org")]), 1, "the same mailbox");
        assert_eq!(distinct_people(&[ann(), admin("token:9"), admin("token:10")]), 2);
    }

    #[test]
    fn vote_that_is_tied_to_two_people_takes_the_place_of_neither() {
        let ann = vote("recipient:ann", VoterIdentities::of_tenant("ann", None));
        let admin = vote("token:admin", VoterIdentities::of_name("token:admin"));
        let made_by_admin = vote("token:1", VoterIdentities::of_tenant("ann", None).with_root("token:admin"));
        assert_eq!(distinct_people(&[made_by_admin.clone(), admin.clone()]), 1);
        assert_eq!(distinct_people(&[made_by_admin, admin, ann]), 2);
    }

    #[test]
    fn vote_without_marks_is_known_by_its_name() {
        let old = |by: &str| vote(by, VoterIdentities::default());
        assert_eq!(distinct_people(&[old("token:1"), old("token:2")]), 2);
        assert!(old("token:1").may_be_of(&VoterIdentities::of_name("token:1")));
    }

    #[test]
    fn voter_marks_hold_no_address() {
        let written = serde_json::to_string(&reached("ann", "ann@example.org")).unwrap();
        assert!(written.contains("tenant:ann") && !written.contains('@'), "{written}");
    }
}
