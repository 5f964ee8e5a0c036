//! A database of either kind, for one test.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use kit::postgres::{Options, Postgres};
use store::{Draft, Kind, NewToken, Retention, Store, StoredUpdate, Validators};
use tempfile::TempDir;

pub const URL: &str = "https://example.org/new.atom";

/// Time limits of the server that all tests share: longer than the store
/// sets itself, so that a machine that stalls for some seconds fails no test. The store's own
/// limits are tested in `outage.rs`, on servers of their own.
const PATIENT: &str = "options=-c%20lock_timeout%3D60s%20-c%20statement_timeout%3D60s\
                       %20-c%20idle_in_transaction_session_timeout%3D60s";

/// Where a test has its database.
pub struct Site {
    /// For the database, if it is a file, and whatever else the test needs.
    pub folder: TempDir,
    pub url: String,
}

impl Site {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/flexfeed.db", folder.path().display());
        Self { folder, url }
    }

    /// A database of its own on the server that all tests of this process share.
    pub fn postgres() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let database = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let url = server().create(&database).unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            url: format!("{url}?{PATIENT}"),
        }
    }

    /// Another empty database of the same kind.
    pub fn another(&self) -> Self {
        if self.is_postgres() {
            Self::postgres()
        } else {
            Self::sqlite()
        }
    }

    pub fn is_postgres(&self) -> bool {
        self.url.starts_with("postgres:")
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub async fn open(&self) -> Store {
        store::open(&self.url).await.unwrap()
    }

    /// The store with the channel `lore`.
    pub async fn lore(&self) -> Store {
        let store = self.open().await;
        store.channels().open("lore").await.unwrap();
        store
    }
}

/// The server that all tests share, which no test stops. It ends with the process.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start_with(&Options::unsynced()).unwrap())
}

/// Makes a test of each function for either database.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::site::Site::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(crate::site::Site::postgres()).await;
            })+
        }
    };
}
pub(crate) use on_both;

pub fn draft(id: &str, version: u8) -> Draft {
    Draft {
        entry_id: id.to_owned(),
        hash: [version; 32],
        kind: if version == 1 {
            Kind::Created
        } else {
            Kind::Updated
        },
        index: 0,
    }
}

/// Drafts of new entries, `from` up to before `to`.
pub fn drafts(from: usize, to: usize) -> Vec<Draft> {
    (from..to).map(|n| draft(&format!("e{n}"), 1)).collect()
}

pub fn encode(seq: u64, draft: &Draft) -> Vec<u8> {
    format!("{seq}:{}:{}", draft.entry_id, draft.hash[0]).into_bytes()
}

pub fn texts(updates: &[StoredUpdate]) -> Vec<String> {
    updates
        .iter()
        .map(|update| String::from_utf8(update.encoded.clone()).unwrap())
        .collect()
}

pub fn token(hash: u8, label: &str) -> NewToken {
    NewToken {
        hash: [hash; 32],
        label: label.to_owned(),
        limit: None,
        expires_ms: None,
        public: false,
        channels: Vec::new(),
    }
}

pub fn keep(count: u64) -> Retention {
    Retention {
        count: Some(count),
        age_ms: None,
    }
}

pub fn etag(text: &str) -> Validators {
    Validators {
        etag: Some(text.to_owned()),
        last_modified: None,
    }
}
