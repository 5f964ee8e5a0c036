//! One channel for as long as this process has its lease: adopted, announced to the transport,
//! published, its feeds polled.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use flexicast_tokio::source::{Absence, ChannelConfig, FlowEndpoint};
use netio::HostAddress;
use signing::{Endorsement, Era, Lineage, VerifyingKey};
use store::{ChannelSettings, ENDORSEMENT_LEN, FeedRow, Retention, SigningEra};
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::context::Context;
use super::feeds::Feeds;
use super::flow::{self, FlowParameters};
use super::unsigned;
#[cfg(feature = "fault-injection")]
use crate::faults::adopt;
use crate::publish::{
    LeaseGuard, LeaseLoss, MessageParts, MessageRelay, Publisher, PublisherEnd, PublisherParts,
};

/// Time limit at the end for updates that are stored and not published yet.
const LAST_UPDATES: Duration = Duration::from_secs(2);

/// Longest wait for the database when a lease is released.
const RELEASE: Duration = Duration::from_secs(2);

/// A channel to publish.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChannelSpec {
    pub(super) settings: ChannelSettings,
    pub(super) feeds: Vec<FeedRow>,
}

impl ChannelSpec {
    /// Whether the settings are the same; results of polls do not count.
    pub(super) fn is_like(&self, other: &ChannelSpec) -> bool {
        let feed = |row: &FeedRow| (row.settings.clone(), row.active, row.paused, row.gone_ms);
        let same = self.feeds.len() == other.feeds.len()
            && self.feeds.iter().map(feed).eq(other.feeds.iter().map(feed));
        same && self.settings == other.settings
    }
}

/// End of a channel's publishing.
#[derive(Debug, Error)]
pub(super) enum ChannelEnd {
    /// Stopped, with the lease released.
    #[error("stopped")]
    Stopped,
    /// Another source has it.
    #[error("{0}")]
    Lost(LeaseLoss),
    /// The database is older than what was published. The lease is released.
    #[error("{}", PublisherEnd::SetBack)]
    SetBack,
    /// Publishing has to restart. The lease is released.
    #[error("{}", PublisherEnd::Hole)]
    Restart,
    /// The start failed. The lease is released.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

/// A channel that is published here.
pub(super) struct Channel {
    context: Arc<Context>,
    name: String,
    lease: LeaseGuard,
    publisher: Publisher,
    wake: Arc<Notify>,
    keep: watch::Sender<Retention>,
    wanted: watch::Receiver<ChannelSpec>,
    sending: FlowParameters,
    /// Addresses of this machine, from which the flow is sent.
    addresses: watch::Receiver<Vec<HostAddress>>,
    /// Groups of the flow with the addresses that send to them.
    endpoints: Vec<FlowEndpoint>,
    /// Keys that sign the updates.
    lineage: Lineage,
    /// Keys that vouch for each other.
    endorsements: Vec<Endorsement>,
    feeds: Feeds,
    messages: Messages,
}

/// Task that sends the channel's messages while it is live. It ends with this.
struct Messages {
    is_live: watch::Sender<bool>,
}

impl Messages {
    /// A task that waits until [`Messages::set_deadline`] lets it send.
    fn new(relay: MessageRelay) -> Self {
        let is_live = watch::Sender::new(false);
        tokio::spawn(relay.run(is_live.subscribe()));
        Self { is_live }
    }

    fn set_deadline(&self, deadline_ms: Option<u64>) {
        self.is_live.send_replace(deadline_ms.is_some());
    }
}

/// Returns the lineage of a channel, as receivers are notified of it.
fn lineage(channel: &str, eras: &[SigningEra]) -> Result<Lineage> {
    let eras = eras.iter().map(|era| Era {
        first: era.first,
        last: era.last,
        incarnation: era.incarnation,
        key: VerifyingKey(era.key),
    });
    Lineage::new(eras.collect()).with_context(|| format!("the keys of channel {channel:?}"))
}

/// Returns an endorsement as it is stored: signer, subject, signature.
fn endorsement(stored: &[u8; ENDORSEMENT_LEN]) -> Option<Endorsement> {
    let (signer, rest) = stored.split_first_chunk()?;
    let (subject, signature) = rest.split_first_chunk()?;
    Some(Endorsement {
        signer: VerifyingKey(*signer),
        subject: VerifyingKey(*subject),
        signature: signature.try_into().ok()?,
    })
}

impl Channel {
    /// Adopts a channel whose lease is held, and serves it to receivers.
    ///
    /// # Errors
    /// The store fails, another source has taken the lease
    /// ([`StoreError::Fenced`](store::StoreError)), or the flow cannot be made. The
    /// caller has to release the lease.
    pub(super) async fn begin(
        context: Arc<Context>,
        name: &str,
        lease: LeaseGuard,
        mut wanted: watch::Receiver<ChannelSpec>,
    ) -> Result<Self> {
        let settings = wanted.borrow_and_update().settings.clone();
        let sending = FlowParameters::of(&context.config, &settings)?;
        #[cfg(not(feature = "fault-injection"))]
        let adopt = store::HeadMark::adopt;
        let (mark, fence) = (context.mark(name), lease.shown_fence());
        let adopted = adopt(&mark, &context.store, name, fence).await?;
        if let Some(renewal) = &adopted.renewal {
            warn!(
                channel = name,
                incarnation = %adopted.channel.incarnation,
                "channel gets a new incarnation; its receivers start over: {renewal}. \
                 Otherwise they could miss updates under reused numbers"
            );
        }
        let (incarnation, mark) = (adopted.channel.incarnation, adopted.mark.clone());
        let key = context.signer.key();
        let eras = context.store.signing_eras().begin(name, fence, &key.0);
        let lineage = lineage(name, &eras.await?)?;
        if let Some(era) = lineage.eras().last() {
            let head = adopted.channel.head;
            let signing = unsigned::sign(&context.store, (name, fence), head, era, &context.signer);
            tokio::select! {
                signed = signing => signed?,
                lost = lease.keep(&context.store) => bail!("the lease was lost: {lost}"),
            }
        }
        let keys = context.store.signing_keys().list().await?;
        let endorsements = keys.iter().flat_map(|key| &key.endorsements);
        let endorsements = endorsements.filter_map(endorsement).collect();
        let keep = watch::Sender::new(flow::keep(&context.config, &settings));
        let wake = Arc::new(Notify::new());
        let metrics = context.metrics.channel(name);
        let works = PublisherParts {
            store: context.store.clone(),
            transport: Arc::new(context.handle.clone()),
            lease: lease.clone(),
            wake: Arc::clone(&wake),
            keep: keep.subscribe(),
            metrics: metrics.clone(),
        };
        let publisher = Publisher::new(adopted, works);
        let relay = MessageRelay::new(
            name,
            incarnation,
            MessageParts {
                store: context.store.clone(),
                transport: Arc::new(context.handle.clone()),
                lease: lease.clone(),
                signer: Arc::clone(&context.signer),
                metrics: metrics.clone(),
            },
        );
        let feeds = Feeds::new(
            Arc::clone(&context),
            name,
            incarnation,
            lease.shown_fence(),
            Arc::clone(&wake),
            metrics,
        );
        feeds.set_deadline(settings.deadline_ms);
        let mut channel = Self {
            name: name.to_owned(),
            addresses: context.addresses.clone(),
            endpoints: Vec::new(),
            lineage,
            endorsements,
            lease,
            publisher,
            wake,
            keep,
            wanted,
            sending,
            messages: Messages::new(relay),
            feeds,
            context,
        };
        let open = &channel.context.open;
        open.open(name, incarnation, mark, channel.lease.clone());
        if let Err(error) = channel.announce().await {
            channel.context.open.shut(name);
            return Err(error);
        }
        channel.messages.set_deadline(settings.deadline_ms);
        let (lease, status) = (channel.lease.clone(), channel.publisher.status());
        let board = &channel.context.board;
        board.active(name, incarnation, lease, status);
        Ok(channel)
    }

    /// Announces the channel to the transport.
    async fn announce(&mut self) -> Result<()> {
        let channel = self.publisher.channel();
        let flow = {
            let addresses = self.addresses.borrow_and_update();
            self.sending.flow(&self.context.config, &addresses)?
        };
        self.endpoints = flow
            .iter()
            .flat_map(|flow| flow.endpoints.clone())
            .collect();
        let announced = self.context.handle.add_channel(ChannelConfig {
            name: channel.name,
            incarnation: channel.incarnation,
            head: channel.head,
            first: channel.first,
            private: self.sending.private,
            lineage: self.lineage.clone(),
            endorsements: self.endorsements.clone(),
            flow,
        });
        announced.await.with_context(|| {
            format!(
                "cannot serve channel {:?} (--group, --flow-source)",
                self.name
            )
        })
    }

    /// Returns the paths of its updates, in words.
    pub(super) fn paths(&self) -> String {
        self.sending.paths(&self.context.config)
    }

    /// Publishes the channel until `stop`, or until that is not possible any more.
    pub(super) async fn run(mut self, stop: CancellationToken) -> ChannelEnd {
        let wanted = self.wanted.borrow_and_update().clone();
        self.feeds.set(&wanted.feeds);
        self.feeds.take_publications();
        let ended = loop {
            match self.until_changed(&stop).await {
                Step::Change(sending) => {
                    if let Err(error) = self.change(sending).await {
                        break ChannelEnd::Failed(error);
                    }
                }
                Step::Move(endpoints) => self.move_flow(endpoints).await,
                Step::Stop => break self.finish().await,
                Step::Ended(ended) => break ended,
            }
        };
        self.end(ended).await
    }

    /// Publishes until the flow has to change, or publishing ends.
    async fn until_changed(&mut self, stop: &CancellationToken) -> Step {
        let never = CancellationToken::new();
        let publishing = self.publisher.run(&never);
        tokio::pin!(publishing);
        loop {
            tokio::select! {
                ended = &mut publishing => return Step::Ended(match ended {
                    PublisherEnd::Stopped => ChannelEnd::Stopped,
                    PublisherEnd::Lost(lost) => ChannelEnd::Lost(lost),
                    PublisherEnd::SetBack => ChannelEnd::SetBack,
                    PublisherEnd::Hole => ChannelEnd::Restart,
                }),
                () = stop.cancelled() => return Step::Stop,
                Ok(()) = self.addresses.changed() => {
                    let addresses = self.addresses.borrow_and_update().clone();
                    let config = &self.context.config;
                    match self.sending.endpoints(config, &addresses) {
                        Ok(endpoints) if endpoints != self.endpoints => {
                            return Step::Move(endpoints);
                        }
                        Ok(_) => {}
                        Err(error) => warn!(
                            channel = self.name,
                            error = format!("{error:#}"),
                            "flow stays on an address that may be gone"
                        ),
                    }
                }
                () = self.feeds.ended() => {}
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return Step::Stop;
                    }
                    let wanted = self.wanted.borrow_and_update().clone();
                    self.feeds.set_deadline(wanted.settings.deadline_ms);
                    self.messages.set_deadline(wanted.settings.deadline_ms);
                    self.feeds.set(&wanted.feeds);
                    let config = &self.context.config;
                    self.keep.send_replace(flow::keep(config, &wanted.settings));
                    self.wake.notify_one();
                    match FlowParameters::of(config, &wanted.settings) {
                        Ok(sending) if sending != self.sending => return Step::Change(sending),
                        Ok(_) => {}
                        Err(error) => warn!(
                            channel = self.name,
                            error = format!("{error:#}"),
                            "channel settings not applied"
                        ),
                    }
                }
            }
        }
    }

    /// Continues with another flow, for which receivers come back.
    async fn change(&mut self, sending: FlowParameters) -> Result<()> {
        let handle = &self.context.handle;
        handle.remove_channel(&self.name, Absence::Elsewhere).await;
        self.sending = sending;
        self.announce().await?;
        info!(
            channel = self.name,
            paths = self.paths(),
            "channel settings applied"
        );
        Ok(())
    }

    /// Sends the flow from other addresses of this machine; the receivers stay.
    async fn move_flow(&mut self, endpoints: Vec<FlowEndpoint>) {
        let handle = &self.context.handle;
        match handle.set_endpoints(&self.name, endpoints.clone()).await {
            Ok(()) => self.endpoints = endpoints,
            Err(error) => warn!(
                channel = self.name,
                error = format!("{error:#}"),
                "flow stays on an address that may be gone"
            ),
        }
    }

    /// Stops the feeds, and publishes what is stored.
    async fn finish(&mut self) -> ChannelEnd {
        self.feeds.stop().await;
        let stop = CancellationToken::new();
        stop.cancel();
        let last = tokio::time::timeout(LAST_UPDATES, self.publisher.run(&stop));
        match last.await {
            Ok(PublisherEnd::Lost(lost)) => ChannelEnd::Lost(lost),
            // The next holder publishes the rest.
            _ => ChannelEnd::Stopped,
        }
    }

    /// Leaves everything as the next holder needs it. Returns the final reason for the end.
    async fn end(&mut self, ended: ChannelEnd) -> ChannelEnd {
        let ended = match ended {
            ChannelEnd::SetBack => {
                // What they store is of the incarnation that ends.
                self.feeds.stop().await;
                self.renew().await
            }
            other => other,
        };
        self.messages.set_deadline(None);
        // Of a channel that was stopped, receivers still get what was published before.
        if !matches!(ended, ChannelEnd::Stopped) {
            let handle = &self.context.handle;
            handle.remove_channel(&self.name, Absence::Elsewhere).await;
            self.context.open.shut(&self.name);
        }
        self.feeds.stop().await;
        release(&self.context, &self.lease).await;
        ended
    }

    /// Gives a channel whose database was set back a new incarnation, before another source can
    /// take it for the old one.
    async fn renew(&self) -> ChannelEnd {
        let fence = self.lease.shown_fence();
        match self.context.store.channels().renew(&self.name, fence).await {
            Ok(channel) => {
                error!(
                    channel = self.name,
                    incarnation = %channel.incarnation,
                    "channel gets a new incarnation; its receivers start over: {}",
                    ChannelEnd::SetBack
                );
                ChannelEnd::Restart
            }
            // The new holder has checked the database itself.
            Err(failure) if failure.is_fenced() => ChannelEnd::Lost(LeaseLoss::Taken),
            Err(failure) => {
                warn!(channel = self.name, error = %failure, "incarnation not renewed; retrying");
                ChannelEnd::SetBack
            }
        }
    }
}

/// Releases a lease. One that another source has by now stays as it is.
pub(super) async fn release(context: &Context, lease: &LeaseGuard) {
    let released = lease.release(&context.store);
    match tokio::time::timeout(RELEASE, released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "lease release failed; it will expire"),
        Err(_) => warn!("lease release timed out; it will expire"),
    }
}

/// Reason for an interruption of publishing.
enum Step {
    Change(FlowParameters),
    /// The flow is sent from other addresses.
    Move(Vec<FlowEndpoint>),
    Stop,
    Ended(ChannelEnd),
}
