//! SQLite files: permissions, damage, and files that cannot be opened.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use store::{Store, StoreError};

use crate::site::{URL, draft};

async fn open(folder: &Path) -> Store {
    let store = store::open_file(&folder.join("flexfeed.db")).await.unwrap();
    store.channels().open("lore").await.unwrap();
    store
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let fails = async |path: &Path, expected: &str| {
        let text = match store::open_file(path).await {
            Ok(_) => panic!("{} was opened", path.display()),
            Err(error) => error.to_string(),
        };
        assert!(text.contains(expected), "{text}");
        assert!(text.contains(&path.display().to_string()), "{text}");
    };
    fails(&root.join("missing/y.db"), "does not exist; create it").await;
    fails(root, "it is a folder").await;
    let garbage = root.join("garbage.db");
    std::fs::write(&garbage, [b'x'; 10_000]).unwrap();
    fails(&garbage, "is damaged or not a database").await;
    assert_eq!(std::fs::read(&garbage).unwrap(), [b'x'; 10_000]);
    fails(&garbage.join("y.db"), "is not a folder").await;
    let locked = root.join("locked");
    std::fs::create_dir(&locked).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o555)).unwrap();
    // The superuser may write everywhere.
    if std::fs::write(locked.join("probe"), "").is_err() {
        fails(&locked.join("y.db"), "must be writable for this user").await;
    }
    let url = format!("sqlite://{}/z.db", root.join("missing").display());
    let text = store::open(&url).await.err().unwrap().to_string();
    assert!(text.starts_with(&format!("cannot open {url}: ")), "{text}");
}

#[tokio::test]
async fn a_file_damaged_in_its_middle_gives_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let drafts: Vec<_> = (0..200).map(|n| draft(&format!("e{n}"), 1)).collect();
    store
        .updates()
        .append("lore", URL, None, &drafts, None, &|_, _| vec![9; 3000])
        .await
        .unwrap();
    store.close().await;
    let path = folder.path().join("flexfeed.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // All but the first pages, which hold the schema.
    for byte in &mut bytes[60_000..] {
        *byte = 0xaa;
    }
    std::fs::write(&path, bytes).unwrap();
    let error = match store::open_file(&path).await {
        Err(error) => error,
        Ok(store) => store
            .updates()
            .read("lore", 1, 1000, 1 << 24)
            .await
            .unwrap_err(),
    };
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn a_new_file_is_readable_by_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd %3F name?.db");
    let store = store::open_file(&path).await.unwrap();
    store.channels().open("lore").await.unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", file.file_name());
    }
    assert!(path.exists());
}
