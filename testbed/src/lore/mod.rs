//! A feed like the one of lore.kernel.org, under the control of a test.
//!
//! The document has lore's shape: an Atom window of the 25 newest mails, newest first, declared as us-ascii with character references, xhtml content in `pre` with
//! quotes in `span`, `thr:in-reply-to`, `urn:uuid` ids. Its text is made up from a seed. It grows on command or at a rate, and every new or changed entry is
//! written to a *ledger* before anybody is shown it, so that a test knows what there was to see.
//!
//! It also plays an hour of a busy archive, faster than it would happen: then nothing waits for polls, and what passes through the window unseen can only be found
//! by the archive's search.
//!
//! Instead of made-up mails it can reveal those of a recorded document one after the other, or follow a file that somebody else keeps up to date.

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
