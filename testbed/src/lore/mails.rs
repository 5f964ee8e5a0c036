//! Made-up mails: threads of patches, reviews and reports about a kernel that does not exist.

use std::collections::VecDeque;
use std::fmt::Write;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of previous mails that an answer may refer to.
const THREAD_MEMORY: usize = 40;

/// One mail.
#[derive(Debug, Clone)]
pub struct Mail {
    /// `urn:uuid:…`
    pub id: String,
    /// Its page on the archive.
    pub link: String,
    /// The subject.
    pub title: String,
    /// The author's name; not always ASCII.
    pub author: String,
    /// The author's address.
    pub email: String,
    /// Time of sending.
    pub updated: Timestamp,
    /// Id and page of the mail that it answers.
    pub parent: Option<(String, String)>,
    /// The text, in runs of quoted and own lines.
    pub body: Vec<Run>,
    /// 1, and one more for every change.
    pub version: u32,
}

/// Consecutive lines of a mail's text.
#[derive(Debug, Clone)]
pub struct Run {
    /// Whether these lines are quoted from an earlier mail.
    pub quoted: bool,
    /// The lines, each with its end.
    pub text: String,
}

/// Writes mails; the same seed gives the same mails, apart from their times.
#[derive(Debug)]
pub struct Writer {
    rng: StdRng,
    written: u64,
    newest: Timestamp,
    threads: VecDeque<(String, String, String)>,
}

const NAMES: [(&str, &str); 12] = [
    ("Ada Brückner", "ada.brueckner"),
    ("Tomás Ferreira", "tferreira"),
    ("Wu Min", "wumin"),
    ("Łucja Zając", "lucja"),
    ("Priya Raman", "priya.raman"),
    ("Jørn Aas", "jaas"),
    ("Kofi Mensah", "kofi"),
    ("水野 さくら", "s.mizuno"),
    ("Ruth O'Leary", "roleary"),
    ("test robot", "bot"),
    ("Émile Gagnon", "emile.gagnon"),
    ("Sam <sam> Field", "sam"),
];
const AREAS: [&str; 12] = [
    "net: vexi",
    "mm/slate",
    "drm/opaq",
    "fs: burrow",
    "clk: tern",
    "sched/fair",
    "usb: gadget: quill",
    "arm64: dts: heron",
    "block: ferry",
    "selftests/lint",
    "i2c: moth",
    "docs",
];
const DEEDS: [&str; 10] = [
    "fix a leak in",
    "simplify",
    "do not sleep in",
    "bound the size of",
    "document",
    "drop the unused",
    "check the result of",
    "add tracepoints to",
    "split",
    "annotate the locking of",
];
const THINGS: [&str; 11] = [
    "the probe path",
    "ring refill",
    "the suspend handler",
    "descriptor reuse",
    "queue teardown",
    "the error path of attach",
    "page recycling",
    "the watchdog",
    "the naïve fallback – again",
    "the flags word",
    "runtime power management",
];
const SENTENCES: [&str; 12] = [
    "This was seen on a board with two controllers, where the second one comes up first.",
    "The count can be changed between the check and its use, since nothing holds the lock here.",
    "No change in behaviour is intended.",
    "I have tested this with the usual load for a night & saw no difference in throughput.",
    "Would it not be simpler to return early when the list is empty?",
    "The comment above says \"never 0\", yet the caller passes 0 if a < b.",
    "Please send the cleanup as a separate patch, so that the fix can go to stable alone.",
    "That makes sense to me, with the nit about the naming fixed.",
    "On 32-bit machines the shift overflows for x > 31; see the table in the commit message.",
    "Sorry for the late answer – I was travelling.",
    "The naïve version is 3 % slower, but it is the one that I can still read tomorrow.",
    "Applied, thanks!",
];
const SYMBOLS: [&str; 8] = [
    "vx_refill",
    "slate_put",
    "opaq_commit",
    "burrow_iget",
    "tern_round",
    "quill_ep_queue",
    "ferry_merge",
    "moth_xfer",
];

impl Writer {
    /// A writer whose mails follow from the seed.
    pub fn new(seed: u64) -> Writer {
        Writer {
            rng: StdRng::seed_from_u64(seed),
            written: 0,
            newest: Timestamp::UNIX_EPOCH,
            threads: VecDeque::new(),
        }
    }

    /// The next mail, dated now, and never before the one before it.
    pub fn write(&mut self) -> Mail {
        self.newest = self.newest.max(Timestamp::now());
        self.write_dated(self.newest)
    }

    /// The next mail, with a date of its own: senders' clocks are wrong, and mails are held up.
    pub fn write_dated(&mut self, date: Timestamp) -> Mail {
        self.written += 1;
        let id = self.uuid();
        let (author, user) = self.pick(&NAMES);
        let link = format!(
            "https://lore.example/all/{}.{}-{user}@mail.example/",
            self.written,
            self.rng.random_range(1000..100_000)
        );
        let answers = self.rng.random_bool(0.6) && !self.threads.is_empty();
        let (title, parent) = if answers {
            let at = self.rng.random_range(0..self.threads.len());
            let (id, link, title) = self.threads.get(at).cloned().unwrap_or_default();
            let title = title.strip_prefix("Re: ").unwrap_or(&title).to_owned();
            (format!("Re: {title}"), Some((id, link)))
        } else {
            (self.subject(), None)
        };
        self.threads
            .push_back((id.clone(), link.clone(), title.clone()));
        if self.threads.len() > THREAD_MEMORY {
            self.threads.pop_front();
        }
        Mail {
            id,
            link,
            title,
            author: author.to_owned(),
            email: format!("{user}@mail.example"),
            updated: date,
            parent,
            body: self.body(answers),
            version: 1,
        }
    }

    /// The same mail changed: subject, text and date.
    pub fn change(&mut self, mail: &Mail) -> Mail {
        self.newest = self.newest.max(Timestamp::now());
        self.change_dated(mail, self.newest)
    }

    /// The same with a date of its own.
    pub fn change_dated(&mut self, mail: &Mail, date: Timestamp) -> Mail {
        let mut changed = mail.clone();
        changed.version += 1;
        let plain = mail.title.split(" [changed ").next().unwrap_or_default();
        changed.title = format!("{plain} [changed {}]", mail.version);
        changed.updated = date;
        changed.body = self.body(mail.parent.is_some());
        changed
    }

    fn subject(&mut self) -> String {
        let (area, deed, thing) = (self.pick(&AREAS), self.pick(&DEEDS), self.pick(&THINGS));
        let of = self.rng.random_range(1..=12u32);
        let number = self.rng.random_range(1..=of);
        let version = self.rng.random_range(1..=5u32);
        let again = if version > 1 {
            format!(" v{version}")
        } else {
            String::new()
        };
        let series = if of > 1 {
            format!(" {number}/{of}")
        } else {
            String::new()
        };
        format!("[PATCH{again}{series}] {area}: {deed} {thing}")
    }

    /// Mostly one to four kilobytes, sometimes tens of them, as mails are.
    fn body(&mut self, answers: bool) -> Vec<Run> {
        let size = match self.rng.random_range(0..10u32) {
            0..6 => self.rng.random_range(300..4_000),
            6..9 => self.rng.random_range(4_000..12_000),
            _ => self.rng.random_range(12_000..50_000),
        };
        let mut body = Vec::new();
        let mut length = 0;
        let mut quoted = false;
        while length < size {
            let mut text = if self.rng.random_bool(0.5) {
                self.paragraph()
            } else {
                self.hunk()
            };
            if quoted {
                text = text.lines().fold(String::new(), |mut all, line| {
                    let _ = writeln!(all, "> {line}");
                    all
                });
            }
            length += text.len();
            body.push(Run { quoted, text });
            quoted = answers && !quoted;
        }
        body
    }

    fn paragraph(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.rng.random_range(1..5) {
            let sentence = self.pick(&SENTENCES);
            let _ = writeln!(text, "{sentence}");
        }
        text.push('\n');
        text
    }

    fn hunk(&mut self) -> String {
        let symbol = self.pick(&SYMBOLS);
        let line = self.rng.random_range(10..2_000);
        let mut text =
            format!("@@ -{line},6 +{line},7 @@ static int {symbol}(struct ring *r, u32 n)\n");
        for _ in 0..self.rng.random_range(3..20) {
            let mark = self.pick(&[" ", " ", "-", "+"]);
            let (one, two) = (self.pick(&SYMBOLS), self.rng.random_range(0..256));
            let _ = writeln!(
                text,
                "{mark}\tif ({one}(r->tail & {two}) < n && !r->stopped)"
            );
        }
        text.push('\n');
        text
    }

    fn uuid(&mut self) -> String {
        let number: u128 = self.rng.random();
        let hex = format!("{number:032x}");
        let mut id = String::from("urn:uuid:");
        for (at, digit) in hex.chars().enumerate() {
            if matches!(at, 8 | 12 | 16 | 20) {
                id.push('-');
            }
            id.push(digit);
        }
        id
    }

    fn pick<T: Copy + Default>(&mut self, list: &[T]) -> T {
        let at = self.rng.random_range(0..list.len());
        list.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_gives_the_same_mails() {
        let (mut one, mut two) = (Writer::new(7), Writer::new(7));
        for _ in 0..50 {
            let (a, b) = (one.write(), two.write());
            assert_eq!((a.id, a.title, a.link), (b.id, b.title, b.link));
        }
    }

    #[test]
    fn ids_differ_and_answers_refer_to_earlier_mails() {
        let mut writer = Writer::new(1);
        let mut seen = HashSet::new();
        let mut answers = 0;
        for _ in 0..300 {
            let mail = writer.write();
            if let Some((parent, _)) = &mail.parent {
                assert!(seen.contains(parent));
                answers += 1;
            }
            assert!(seen.insert(mail.id));
        }
        assert!(answers > 50);
    }
}
