//! The SQLite file of a test: a copy of one that is made once per build of the schema.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use reveille::base::clock::Clock;
use reveille::store::{Settings, Store};

use super::binary::TempDir;

/// The name of the database in a data directory.
const FILE: &str = "reveille.db";

/// Puts a database that is up to date and has nothing in it into the directory.
///
/// Tests run in processes of their own. Each that finds no template makes one; it gets its name once it is whole.
pub fn migrated_copy(dir: &Path) {
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sqlite-{:016x}.db", schema_hash()));
    if !template.exists() {
        // the callers can't wait in their own runtime
        let made = template.clone();
        std::thread::spawn(move || make(&made)).join().expect("a template");
    }
    std::fs::copy(&template, dir.join(FILE)).expect("copy the template");
}

fn make(template: &Path) {
    let dir = TempDir::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = Store::open(&Settings::default(), dir.path(), Clock::system(), |_| {}).await.expect("migrate");
        store.close().await;
    });
    assert!(!dir.path().join(format!("{FILE}-wal")).exists(), "the database is not whole without its log");
    let draft = template.with_extension(format!("{:016x}", fastrand::u64(..)));
    std::fs::copy(dir.path().join(FILE), &draft).expect("copy the database");
    std::fs::rename(&draft, template).expect("name the template");
}

/// A template is good for one schema.
fn schema_hash() -> u64 {
    let mut hasher = DefaultHasher::new();
    for migration in sqlx_macros::migrate!("migrations/sqlite").iter() {
        migration.checksum.hash(&mut hasher);
    }
    hasher.finish()
}
