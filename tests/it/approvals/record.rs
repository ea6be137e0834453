//! The record of what was asked and decided: sealed by the service, and whatever is changed in the database is found.

use reveille::engine::maintenance::sealer::chain::{ChainCheck, verify};
use reveille::ports::vault::{KeySource, Settings, Vault, WithoutKeys};

use super::expiry::asking;
use crate::support::app::Instance;
use crate::support::world::{MASTER_KEY, World, on_both};

on_both! {
    changed_cut_or_unsealed_audit_rows_are_found
}

/// The key that the instances of the world seal with.
fn vault(world: &World) -> Vault {
    let keys = if world.is_postgres() { vec![KeySource::value(MASTER_KEY)] } else { vec![] };
    Vault::open(&Settings { master_keys: keys, accept_lost_keys: false }, WithoutKeys::KeyFile(world.dir()))
        .expect("a vault")
        .0
}

async fn verified(instance: &Instance, world: &World) -> ChainCheck {
    let vault = vault(world);
    instance.on(|store| async move { verify(&store, &vault).await }).await.expect("walked")
}

/// Entries as sealed, those not sealed yet, and where the chain is broken.
fn line(verified: &ChainCheck) -> (i64, i64, Option<i64>) {
    (verified.sealed, verified.unsealed, verified.broken.as_ref().map(|broken| broken.position))
}

async fn changed_cut_or_unsealed_audit_rows_are_found(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    asking(&instance).await;
    assert_eq!(line(&verified(&instance, &world).await), (0, 2, None));
    instance.tick(&instance.engine().sealer).await.expect("sealed");
    assert_eq!(line(&verified(&instance, &world).await), (2, 0, None));
    // nobody answers: two more entries
    world.advance_to("08:31");
    instance.attend().await;
    instance.tick(&instance.engine().sealer).await.expect("sealed");
    assert_eq!(line(&verified(&instance, &world).await), (4, 0, None));

    for (damage, mend, position) in [
        ("update audit set actor = 'x' where position = 2", "update audit set actor = 'service' where position = 2", 2),
        ("update audit set position = 9 where position = 3", "update audit set position = 3 where position = 9", 3),
        ("update audit set position = -4 where position = 4", "update audit set position = 4 where position = -4", 4),
        ("update audit_chain set position = 3", "update audit_chain set position = 4", 4),
    ] {
        world.execute(damage, damage).await;
        assert_eq!(line(&verified(&instance, &world).await).2, Some(position), "{damage}");
        world.execute(mend, mend).await;
        assert_eq!(line(&verified(&instance, &world).await), (4, 0, None), "{mend}");
    }
    let cut_off = "delete from audit where position = 4";
    world.execute(cut_off, cut_off).await;
    assert_eq!(line(&verified(&instance, &world).await), (3, 0, Some(4)));
    instance.finish(&world).await;
}
