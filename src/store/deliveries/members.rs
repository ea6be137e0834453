//! The outcome of the messages of a digest when the digest itself has one: steps of its transaction.

use crate::store::Split;

/// Gives the messages of a digest the digest's outcome.
macro_rules! settle_members {
    ($conn:expr, $digest:expr, $state:expr, $error:expr, $sent:expr, $delivered:expr) => {{
        sqlx::query(
            "update deliveries set state = $2, last_error = $3, sent_at = coalesce(sent_at, $4),
                    delivered_at = coalesce(delivered_at, $5)
              where digest_id = $1 and state in ('pending', 'sent', 'unknown')",
        )
        .bind($digest)
        .bind($state.as_str())
        .bind($crate::store::text::optional($error))
        .bind($sent)
        .bind($delivered)
        .execute(&mut *$conn)
        .await?;
    }};
}
pub(in crate::store) use settle_members;

/// The digest that takes the place of one that failed, if it still takes messages.
pub(in crate::store) const HEIR: Split = Split {
    postgres: "select id from deliveries where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4
                  and state = 'pending' and lease_token = 0 for update",
    sqlite: "select id from deliveries where tenant_id = $1 and recipient = $2 and channel = $3 and dedupe_key = $4
                and state = 'pending' and lease_token = 0",
};

/// The messages of a digest are told by the one that takes its place, which is in the outbox; where that one was on its
/// way before, they have failed as well.
macro_rules! hand_over {
    ($conn:expr, $heir:expr, $digest:expr, $next:expr, $error:expr) => {{
        let heir: Option<Uuid> = sqlx::query_scalar($heir)
            .bind(&$next.tenant_id)
            .bind(&$next.recipient)
            .bind($crate::store::text::text(&$next.channel))
            .bind($crate::store::text::text(&$next.dedupe_key))
            .fetch_optional(&mut *$conn)
            .await?;
        match heir {
            Some(heir) => {
                sqlx::query(
                    "update deliveries set state = 'pending', digest_id = $2
                      where digest_id = $1 and state in ('pending', 'sent', 'unknown')",
                )
                .bind($digest)
                .bind(heir)
                .execute(&mut *$conn)
                .await?;
            }
            None => settle_members!(
                $conn,
                $digest,
                DeliveryState::Failed,
                $error,
                None::<DateTime<Utc>>,
                None::<DateTime<Utc>>
            ),
        }
    }};
}
pub(in crate::store) use hand_over;
