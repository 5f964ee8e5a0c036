//! A feed like that of lore.kernel.org, controlled by a test.
//!
//! The document has lore's shape: an Atom window of the 25 newest mails, newest first, declared as
//! us-ascii with character references, xhtml content in `pre` with quotes in `span`,
//! `thr:in-reply-to`, `urn:uuid` ids. Its text is made from a seed. It grows on command or at a
//! rate, and every new or changed entry is written to a *ledger* before it is shown, so that a test
//! knows what there was to see.
//!
//! It also plays an hour of a busy archive, faster than real time: then nothing waits for polls,
//! and entries that pass through the window unseen can be found only by the archive's search.
//!
//! In place of generated mails it can reveal those of a recorded document one after the other, or
//! follow a file that another program updates.

mod archive;
mod book;
mod document;
mod hour;
mod ledger;
mod mails;
mod recorded;
mod server;

pub use book::{Book, BookState, Mode, Origin};
pub use document::WINDOW;
pub use hour::Hour;
pub use ledger::{Line, read as read_ledger};
pub use recorded::Recorded;
pub use server::{Growth, Play, serve};

/// The path of the feed on the generator's server.
pub const FEED_PATH: &str = "/all/new.atom";

/// The path of the archive's search, which answers with Atom for `x=A`.
pub const SEARCH_PATH: &str = "/all/";
