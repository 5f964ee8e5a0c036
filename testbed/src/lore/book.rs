//! Current content of the feed, and its changes.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::archive::Archive;
use super::document::{self, TAIL, WINDOW};
use super::hour::Act;
use super::ledger::Ledger;
use super::mails::{Mail, Writer};
use super::recorded::Recorded;

/// Origin of entries.
#[derive(Debug)]
pub enum Origin {
    /// Made up from a seed.
    Generated(u64),
    /// The entries of a recorded document, revealed oldest first.
    Recorded(Recorded),
    /// A document that another program keeps up to date, shown as it is and not written to the
    /// ledger.
    Followed(PathBuf),
}

/// Response of the feed's URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The feed.
    Feed,
    /// A page that asks for a browser, with status 200.
    Html,
    /// Noise that claims to be Atom, with status 200.
    Garbage,
    /// Status 503.
    Error,
}

impl std::str::FromStr for Mode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Mode> {
        Ok(match text {
            "feed" => Mode::Feed,
            "html" => Mode::Html,
            "garbage" => Mode::Garbage,
            "error" => Mode::Error,
            other => bail!("mode {other:?}: use feed, html, garbage or error"),
        })
    }
}

/// Counts for the test that drives the generator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BookState {
    /// Lines in the ledger.
    pub entries: u64,
    /// Additions and changes that were asked for and wait for a poll.
    pub pending: u64,
    /// Additions and changes since the last poll that got the document.
    pub unseen: u64,
    /// Number of responses with the document.
    pub polls: u64,
    /// Response of the feed's URL.
    pub mode: Mode,
    /// Remaining acts of the hour being played.
    pub left: u64,
}

/// The state of the feed.
///
/// A reader that polls a window of 25 entries misses what passes through it between two polls.
/// Additions therefore wait when `max_unseen` of them have not been given out yet; and an entry is
/// changed only once everything before has been, so that each line of the ledger can be seen as an
/// update of its own.
#[derive(Debug)]
pub struct Book {
    origin: Source,
    ledger: Ledger,
    // Newest first.
    window: VecDeque<Shown>,
    pending: VecDeque<Change>,
    max_unseen: u64,
    unseen: u64,
    polls: u64,
    /// Response of the feed's URL.
    pub mode: Mode,
    /// Remaining acts of the hour being played.
    pub left: u64,
    /// Of an hour that is played: all its mails.
    archive: Archive,
    /// Changes of the document that are no line of the ledger.
    redated: u64,
}

#[derive(Debug)]
enum Source {
    Generated {
        writer: Box<Writer>,
        updated: String,
        edits: usize,
    },
    Recorded {
        head: String,
        tail: String,
        // Oldest last, where the next one to be shown is taken.
        hidden: Vec<(String, String)>,
    },
    Followed {
        path: PathBuf,
        modified: Option<SystemTime>,
        document: Vec<u8>,
        // Changes of the document; what is in it is not our concern.
        revision: u64,
    },
}

#[derive(Debug)]
struct Shown {
    id: String,
    xml: String,
    mail: Option<Mail>,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Add,
    Edit,
}

impl Book {
    /// Opens a feed with its first `initial` entries (at most the window's 25).
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn open(
        origin: Origin,
        initial: u32,
        max_unseen: u64,
        ledger: Option<&Path>,
    ) -> Result<Book> {
        let origin = match origin {
            Origin::Generated(seed) => Source::Generated {
                writer: Box::new(Writer::new(seed)),
                updated: document::rfc3339(jiff::Timestamp::now()),
                edits: 0,
            },
            Origin::Recorded(recorded) => Source::Recorded {
                head: recorded.head,
                tail: recorded.tail,
                hidden: recorded.entries,
            },
            Origin::Followed(path) => Source::Followed {
                path,
                modified: None,
                document: format!("{}{TAIL}", document::head("1970-01-01T00:00:00Z")).into_bytes(),
                revision: 0,
            },
        };
        let mut book = Book {
            origin,
            ledger: Ledger::new(ledger)?,
            window: VecDeque::new(),
            pending: VecDeque::new(),
            max_unseen,
            unseen: 0,
            polls: 0,
            mode: Mode::Feed,
            left: 0,
            archive: Archive::default(),
            redated: 0,
        };
        for _ in 0..initial.min(u32::try_from(WINDOW)?) {
            book.add_one()?;
        }
        Ok(book)
    }

    /// Asks for `count` new entries.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn grow(&mut self, count: u32) -> Result<()> {
        self.pending.extend((0..count).map(|_| Change::Add));
        self.advance()
    }

    /// Asks for `count` changes of entries in the window.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub fn edit(&mut self, count: u32) -> Result<()> {
        self.pending.extend((0..count).map(|_| Change::Edit));
        self.advance()
    }

    /// Does what was asked for, as far as the last poll allows.
    ///
    /// # Errors
    /// When the ledger cannot be written, or a followed file cannot be read.
    pub fn advance(&mut self) -> Result<()> {
        self.follow()?;
        while let Some(change) = self.pending.front().copied() {
            let allowed = match change {
                Change::Add if self.next_is_repeated() => self.unseen == 0,
                Change::Add => self.max_unseen == 0 || self.unseen < self.max_unseen,
                Change::Edit => self.unseen == 0,
            };
            if !allowed {
                break;
            }
            self.pending.pop_front();
            match change {
                Change::Add => self.add_one()?,
                Change::Edit => self.edit_one()?,
            }
        }
        Ok(())
    }

    /// The document, which counts as seen from now on.
    ///
    /// # Errors
    /// As [`Book::advance`].
    pub fn give_out(&mut self) -> Result<Vec<u8>> {
        self.advance()?;
        self.polls += 1;
        self.unseen = 0;
        let (head, tail) = match &self.origin {
            Source::Generated { updated, .. } => (document::head(updated), TAIL),
            Source::Recorded { head, tail, .. } => (head.clone(), tail.as_str()),
            Source::Followed { document, .. } => return Ok(document.clone()),
        };
        let entries: String = self.window.iter().map(|shown| shown.xml.as_str()).collect();
        Ok(format!("{head}{entries}{tail}").into_bytes())
    }

    /// A number that changes with every change of the document.
    pub fn version(&self) -> u64 {
        match &self.origin {
            Source::Followed { revision, .. } => *revision,
            _ => self.ledger.count() + self.redated,
        }
    }

    /// Applies an act at once, seen by a poll or not: entries pass through the window unseen if
    /// polls are too rare. `now` is the feed's own time.
    ///
    /// # Errors
    /// The ledger cannot be written.
    pub fn happen(&mut self, act: Act, now: Timestamp) -> Result<()> {
        let Source::Generated {
            writer,
            updated,
            edits,
        } = &mut self.origin
        else {
            return Ok(());
        };
        *updated = document::rfc3339(now);
        self.unseen += 1;
        if let Act::Arrive { age } = act {
            let mail = writer.write_dated(now.checked_sub(age).unwrap_or(now));
            note(&mut self.ledger, &mail)?;
            let xml = document::entry(&mail);
            self.archive.put(&mail.id, now, mail.updated, &xml);
            self.window.push_front(Shown {
                id: mail.id.clone(),
                xml,
                mail: Some(mail),
            });
            self.window.truncate(WINDOW);
            return Ok(());
        }
        *edits += 1;
        let at = *edits % (WINDOW / 3).min(self.window.len()).max(1);
        let Some(shown) = self.window.get_mut(at) else {
            return Ok(());
        };
        let Some(mail) = &mut shown.mail else {
            return Ok(());
        };
        if act == Act::Edit {
            *mail = writer.change_dated(mail, now);
            note(&mut self.ledger, mail)?;
        } else {
            mail.updated = now;
            self.redated += 1;
        }
        shown.xml = document::entry(mail);
        self.archive.put(&mail.id, now, mail.updated, &shown.xml);
        Ok(())
    }

    /// Returns the archive's search result, as an Atom document.
    ///
    /// # Errors
    /// The query is not understood.
    pub fn search(&self, query: &str, offset: usize) -> Result<Vec<u8>> {
        let entries = self.archive.search(query, offset)?;
        let updated = document::rfc3339(Timestamp::now());
        Ok(format!("{}{entries}{TAIL}", document::head(&updated)).into_bytes())
    }

    /// Counts for the test.
    pub fn state(&self) -> BookState {
        BookState {
            entries: self.ledger.count(),
            pending: u64::try_from(self.pending.len()).unwrap_or(u64::MAX),
            unseen: self.unseen,
            polls: self.polls,
            mode: self.mode,
            left: self.left,
        }
    }

    /// Whether the next entry of a recording has the id of one that is shown: archives list a mail
    /// again that reached them twice in different forms. A source takes that for a change, so it
    /// must be seen apart from the first.
    fn next_is_repeated(&self) -> bool {
        let Source::Recorded { hidden, .. } = &self.origin else {
            return false;
        };
        hidden
            .last()
            .is_some_and(|(id, _)| self.window.iter().any(|shown| shown.id == *id))
    }

    fn add_one(&mut self) -> Result<()> {
        let shown = match &mut self.origin {
            Source::Generated {
                writer, updated, ..
            } => {
                let mail = writer.write();
                *updated = document::rfc3339(mail.updated);
                note(&mut self.ledger, &mail)?;
                Shown {
                    id: mail.id.clone(),
                    xml: document::entry(&mail),
                    mail: Some(mail),
                }
            }
            Source::Recorded { hidden, .. } => {
                // All shown: a recording ends, and asking for more is no fault.
                let Some((id, xml)) = hidden.pop() else {
                    return Ok(());
                };
                let earlier = self.window.iter().filter(|shown| shown.id == id).count();
                self.ledger.add(&id, None, u32::try_from(earlier)? + 1)?;
                Shown {
                    id,
                    xml,
                    mail: None,
                }
            }
            // The owner of a followed file decides when it grows.
            Source::Followed { .. } => return Ok(()),
        };
        self.window.push_front(shown);
        self.window.truncate(WINDOW);
        self.unseen += 1;
        Ok(())
    }

    fn edit_one(&mut self) -> Result<()> {
        let Source::Generated {
            writer,
            updated,
            edits,
        } = &mut self.origin
        else {
            return Ok(());
        };
        *edits += 1;
        // Another entry each time, and never one about to leave the window.
        let at = *edits % (WINDOW / 2).min(self.window.len()).max(1);
        let Some(shown) = self.window.get_mut(at) else {
            return Ok(());
        };
        if let Some(mail) = &shown.mail {
            let changed = writer.change(mail);
            *updated = document::rfc3339(changed.updated);
            note(&mut self.ledger, &changed)?;
            shown.xml = document::entry(&changed);
            shown.mail = Some(changed);
            self.unseen += 1;
        }
        Ok(())
    }

    /// Reads a followed file again if it has changed.
    fn follow(&mut self) -> Result<()> {
        let Source::Followed {
            path,
            modified,
            document,
            revision,
        } = &mut self.origin
        else {
            return Ok(());
        };
        // Until its keeper has made the file there is an empty feed.
        let Ok(time) = path.metadata().and_then(|meta| meta.modified()) else {
            return Ok(());
        };
        if *modified != Some(time) {
            *document = std::fs::read(&*path)
                .with_context(|| format!("reading the followed feed {}", path.display()))?;
            *modified = Some(time);
            *revision += 1;
        }
        Ok(())
    }
}

fn note(ledger: &mut Ledger, mail: &Mail) -> Result<()> {
    let title = (!document::title_is_html(mail)).then(|| mail.title.clone());
    ledger.add(&mail.id, title, mail.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(initial: u32, max_unseen: u64) -> Book {
        Book::open(Origin::Generated(5), initial, max_unseen, None).unwrap()
    }

    fn shown(book: &mut Book) -> String {
        String::from_utf8(book.give_out().unwrap()).unwrap()
    }

    #[test]
    fn additions_wait_for_polls() {
        let mut book = book(25, 10);
        book.give_out().unwrap();
        book.grow(35).unwrap();
        let mut polls = 0;
        while book.state().pending > 0 {
            book.give_out().unwrap();
            polls += 1;
        }
        assert_eq!(book.state().entries, 60);
        assert!(polls >= 3);
    }

    #[test]
    fn the_window_holds_the_newest_entries() {
        let mut book = book(3, 0);
        book.grow(40).unwrap();
        let parts = Recorded::parse(&shown(&mut book)).unwrap();
        assert_eq!(parts.entries.len(), WINDOW);
        book.grow(1).unwrap();
        let later = Recorded::parse(&shown(&mut book)).unwrap();
        assert_eq!(later.entries[1].0, parts.entries[0].0);
    }

    #[test]
    fn a_change_keeps_the_id_and_waits_until_everything_was_seen() {
        let mut book = book(5, 10);
        book.edit(1).unwrap();
        assert_eq!(book.state().entries, 5);
        let before = Recorded::parse(&shown(&mut book)).unwrap();
        book.advance().unwrap();
        assert_eq!(book.state().entries, 6);
        let after = Recorded::parse(&shown(&mut book)).unwrap();
        let ids = |parts: &Recorded| -> Vec<String> {
            parts.entries.iter().map(|(id, _)| id.clone()).collect()
        };
        assert_eq!(ids(&before), ids(&after));
        assert!(
            after
                .entries
                .iter()
                .any(|(_, xml)| xml.contains("[changed 1]"))
        );
    }

    #[test]
    fn a_recording_is_revealed_oldest_first_and_ends() {
        let text = "<feed><entry><id>c</id></entry><entry><id>b</id></entry>\
            <entry><id>a</id></entry></feed>";
        let recorded = Recorded::parse(text).unwrap();
        let mut book = Book::open(Origin::Recorded(recorded), 1, 10, None).unwrap();
        assert!(shown(&mut book).contains("<id>a</id></entry></feed>"));
        book.grow(10).unwrap();
        assert_eq!(shown(&mut book), text);
        assert_eq!(book.state().entries, 3);
    }

    #[test]
    fn an_entry_recorded_twice_is_a_change_of_its_own() {
        let text = "<feed><entry><id>a</id>2</entry><entry><id>a</id>1</entry></feed>";
        let recorded = Recorded::parse(text).unwrap();
        let mut book = Book::open(Origin::Recorded(recorded), 0, 10, None).unwrap();
        book.grow(2).unwrap();
        assert!(!shown(&mut book).contains("</id>2"));
        assert!(shown(&mut book).contains("</id>2"));
        assert_eq!(book.state().entries, 2);
    }

    #[test]
    fn messages_between_two_polls_are_in_the_archive_only() {
        let mut book = book(0, 10);
        let begin: Timestamp = "2025-09-05T09:00:00Z".parse().unwrap();
        let arrive = Act::Arrive {
            age: std::time::Duration::from_secs(7_200),
        };
        for n in 0..60 {
            let now = begin + std::time::Duration::from_secs(n);
            book.happen(arrive, now).unwrap();
        }
        let version = book.version();
        let count = |document: &[u8]| -> usize {
            let text = std::str::from_utf8(document).unwrap();
            text.matches("<entry>").count()
        };
        assert_eq!(count(&book.give_out().unwrap()), WINDOW);
        assert_eq!(count(&book.search("rt:20250905090000..", 0).unwrap()), 60);
        assert_eq!(count(&book.search("dt:20250905080000..", 0).unwrap()), 0);
        let before = shown(&mut book);
        book.happen(Act::Redate, begin).unwrap();
        assert_eq!(book.state().entries, 60);
        assert!(book.version() > version);
        assert_ne!(shown(&mut book), before);
        book.happen(Act::Edit, begin).unwrap();
        assert_eq!(book.state().entries, 61);
    }

    #[test]
    fn a_followed_file_is_shown_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("feed.atom");
        let mut book = Book::open(Origin::Followed(path.clone()), 0, 10, None).unwrap();
        assert!(!shown(&mut book).contains("<entry"));
        let before = book.version();
        let text = "<rss><channel><item><guid>a</guid></item></channel></rss>";
        std::fs::write(&path, text).unwrap();
        assert_eq!(shown(&mut book), text);
        assert_ne!(book.version(), before);
    }
}
