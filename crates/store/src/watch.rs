//! Wake-ups at changes in the database.

use std::pin::Pin;
use std::sync::Mutex;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Subject of a [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Records, and what is known of receivers.
    Changes,
    /// Commands to the source.
    Commands,
    /// Messages of live channels.
    Messages,
    /// Publications.
    Publications,
}

impl Topic {
    pub(crate) const ALL: [Self; 4] = [
        Self::Changes,
        Self::Commands,
        Self::Messages,
        Self::Publications,
    ];

    /// The name of PostgreSQL's notifications.
    pub(crate) fn channel(self) -> &'static str {
        match self {
            Self::Changes => "flexfeed_changes",
            Self::Commands => "flexfeed_commands",
            Self::Messages => "flexfeed_messages",
            Self::Publications => "flexfeed_publications",
        }
    }
}

/// Waits for something new: see [`Store::watch`](crate::Store::watch).
#[derive(Debug)]
pub struct Watch {
    news: watch::Receiver<u64>,
}

impl Watch {
    /// Returns when there may be changes since the watch was made, or since this returned last.
    /// Never returns once the store is closed. Safe to drop at any time.
    pub async fn changed(&mut self) {
        if self.news.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Rings a bell, and never returns.
pub(crate) type Listening = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Senders of the wake-ups.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    changes: watch::Sender<u64>,
    commands: watch::Sender<u64>,
    messages: watch::Sender<u64>,
    publications: watch::Sender<u64>,
}

impl Notifier {
    pub(crate) fn ring(&self, topic: Topic) {
        self.of(topic)
            .send_modify(|news| *news = news.wrapping_add(1));
    }

    /// Whether there is a watch for messages, which are worth the more the sooner they are sent.
    pub(crate) fn is_urgent(&self) -> bool {
        self.messages.receiver_count() > 0
    }

    fn of(&self, topic: Topic) -> &watch::Sender<u64> {
        match topic {
            Topic::Changes => &self.changes,
            Topic::Commands => &self.commands,
            Topic::Messages => &self.messages,
            Topic::Publications => &self.publications,
        }
    }
}

/// Wake-ups, and the task that listens to the database for writes of others.
#[derive(Debug)]
pub(crate) struct WriteNotices {
    pub(crate) notifier: Notifier,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl WriteNotices {
    pub(crate) fn new() -> Self {
        Self {
            notifier: Notifier {
                changes: watch::Sender::new(0),
                commands: watch::Sender::new(0),
                messages: watch::Sender::new(0),
                publications: watch::Sender::new(0),
            },
            stop: watch::Sender::new(false),
            task: Mutex::new(None),
        }
    }

    /// Returns a new watch. The first one starts the task, of what `listen` returns.
    pub(crate) fn watch(&self, topic: Topic, listen: impl FnOnce(Notifier) -> Listening) -> Watch {
        let mut task = self.task.lock().unwrap_or_else(|task| task.into_inner());
        if task.is_none() && !*self.stop.borrow() {
            let listening = listen(self.notifier.clone());
            let mut stopped = self.stop.subscribe();
            *task = Some(tokio::spawn(async move {
                tokio::select! {
                    () = listening => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            }));
        }
        Watch {
            news: self.notifier.of(topic).subscribe(),
        }
    }

    /// Ends the task, and its connection with it.
    pub(crate) async fn close(&self) {
        self.stop.send_replace(true);
        let task = self
            .task
            .lock()
            .unwrap_or_else(|task| task.into_inner())
            .take();
        if let Some(task) = task {
            // The task ends at once; one that panicked has ended.
            let _ = task.await;
        }
    }
}

impl Drop for WriteNotices {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
