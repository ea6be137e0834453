//! The key of a task that has none, as an export writes it: it lets the line be imported again without a second task.
//!
//! It holds the task's id. Where the tenant has the task with this id, the line is that task; elsewhere the key is
//! stored like any other, so that a second import finds it.

use uuid::Uuid;

const PREFIX: &str = "export:";

/// The key by which a task without one is exported.
pub fn exported_key(id: Uuid) -> String {
    format!("{PREFIX}{id}")
}

/// The task that a key was made for by [`exported_key`].
pub fn exported_id(key: &str) -> Option<Uuid> {
    let id = key.strip_prefix(PREFIX)?.parse().ok()?;
    (exported_key(id) == key).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_keys_are_read_back_and_no_other_key_is_one() {
        let id = Uuid::from_u128(0xA1B2);
        assert_eq!(exported_id(&exported_key(id)), Some(id));
        let upper = format!("export:{}", id.to_string().to_uppercase());
        let simple = format!("export:{}", id.simple());
        for other in ["export:", "export:daily", &id.to_string(), &upper, &simple] {
            assert_eq!(exported_id(other), None, "{other}");
        }
    }
}
