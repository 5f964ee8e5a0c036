//! The migrations of both databases, as `build.rs` embedded them.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Version, description and statements of a migration.
type Embedded = (i64, &'static str, &'static str);

pub(super) static SQLITE: LazyLock<Migrator> =
    LazyLock::new(|| migrator(&include!(concat!(env!("OUT_DIR"), "/sqlite.rs"))));

pub(super) static POSTGRES: LazyLock<Migrator> =
    LazyLock::new(|| migrator(&include!(concat!(env!("OUT_DIR"), "/postgres.rs"))));

/// Returns the migrations in the order of their versions.
fn migrator(embedded: &[Embedded]) -> Migrator {
    let migration = |&(version, description, statements): &Embedded| {
        let statements = SqlStr::from_static(statements);
        let kind = MigrationType::Simple;
        Migration::new(version, description.into(), kind, statements, false)
    };
    Migrator::with_migrations(embedded.iter().map(migration).collect())
}
