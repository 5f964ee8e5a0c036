import type { Delta, Feed, Move, Overview, Receiver, Relay, Snapshot } from "../api/types";
import { skew } from "../skew";
import { session } from "../session.svelte";
import { EventStream, type StreamState } from "./stream";

/** A tab that is hidden for so long lets the stream go. Flipping through tabs does not. */
const HIDDEN_GRACE_MS = 3000;
/** Other filters, or another part of the table: wait until the hand rests. */
const QUERY_REST_MS = 350;
const KEPT_MOVES = 200;
const EVENTS = "/api/v1/events";

/** A connection that is back within two seconds was never worth a word. */
const PATIENCE_MS = 2000;

/**
 * Of when it is what the console says of receivers, channels and relays; null while it is of now. It is of the past when the
 * source is silent, when the database does not answer, and when the console is out of reach.
 */
export function pastOf(overview: Overview | null | undefined, isLost: boolean): number | null {
  if (!overview) return null;
  if (overview.unknown_since_ms) return overview.unknown_since_ms;
  if (overview.source.state !== "ok") return overview.source.seen_ms;
  return isLost || !overview.database_ok ? overview.as_of_ms : null;
}

export interface ReceiverNews {
  rows: Receiver[];
  gone: string[];
  /** Everything that was asked for, and not what has changed. */
  whole: boolean;
  total: number | null;
  filtered: number | null;
}
export type ReceiverListener = (news: ReceiverNews) => void;

/** The newest of both, each once, newest first. The same list if there is nothing new. */
function merge(news: readonly Move[], old: Move[]): Move[] {
  const known = new Set(old.map((move) => move.id));
  const fresh = news.filter((move) => !known.has(move.id));
  if (!fresh.length) return old;
  return [...fresh, ...old].sort((a, b) => b.at_ms - a.at_ms || b.id - a.id).slice(0, KEPT_MOVES);
}

/** What the console sends by itself. One stream for the whole page. */
class Live {
  state = $state.raw<StreamState>({ kind: "off" });
  overview = $state.raw<Overview | null>(null);
  /** The console is out of reach, for longer than it takes to come back. */
  lost = $state(false);
  /** Newest first. */
  moves = $state.raw<Move[]>([]);
  /** Feeds that have changed, by id; null for those that are gone. */
  feeds = $state.raw<ReadonlyMap<string, Feed | null>>(new Map());
  relays = $state.raw<Relay[] | null>(null);
  /** Grows with each snapshot: what a page loaded by itself may be older. */
  snapshots = $state(0);
  /** When the last message came, by this computer's clock. */
  heardAt = $state(0);
  /** Seconds of this computer's clock, ticking only while the page is visible. */
  now = $state(Date.now());
  /** When the day of now began: what is said of times before it has its date, also on a screen that stays on over midnight. */
  today = $derived(new Date(this.now).setHours(0, 0, 0, 0));
  /** The console's clock minus this computer's. */
  get skewMs(): number {
    return skew.ms;
  }
  /** As `pastOf`, for what is shown now. */
  get past(): number | null {
    return pastOf(this.overview, this.lost);
  }

  private listener: ReceiverListener | null = null;
  private query = "";
  private isRunning = false;
  private queryTimer: ReturnType<typeof setTimeout> | null = null;
  private hiddenTimer: ReturnType<typeof setTimeout> | null = null;
  private lostTimer: ReturnType<typeof setTimeout> | null = null;
  private tick: ReturnType<typeof setInterval> | null = null;
  private readonly stream = new EventStream({
    onState: (state) => this.notice(state),
    onSignedOut: () => session.lost(),
    // The page says what is wrong with its filters; all else goes on.
    onRefused: () => (this.query ? EVENTS : null),
    onAnswer: (response) => skew.read(response),
    onEvent: (event) => {
      if (event.type !== "snapshot" && event.type !== "delta") return;
      let message: unknown;
      try {
        message = JSON.parse(event.data);
      } catch {
        return;
      }
      if (event.type === "snapshot") this.begin(message as Snapshot);
      else this.take(message as Delta);
    },
  });

  start(): void {
    this.isRunning = true;
    document.addEventListener("visibilitychange", this.onVisibility);
    window.addEventListener("online", this.onOnline);
    this.startTicking();
    this.openStream();
    if (document.hidden) this.onVisibility();
  }

  stop(): void {
    document.removeEventListener("visibilitychange", this.onVisibility);
    window.removeEventListener("online", this.onOnline);
    this.stopTicking();
    for (const timer of [this.queryTimer, this.hiddenTimer]) if (timer) clearTimeout(timer);
    this.queryTimer = this.hiddenTimer = null;
    // No user is signed in: nothing that a page asked for is followed on.
    this.isRunning = false;
    this.query = "";
    this.listener = null;
    this.stream.close();
    this.overview = null;
    this.moves = [];
    this.feeds = new Map();
    this.relays = null;
  }

  /** Asks for receivers, too: those of this query (as in `GET /receivers`). Empty: none. */
  follow(query: string, listener: ReceiverListener | null): void {
    this.listener = listener;
    if (query === this.query) return;
    this.query = query;
    if (this.queryTimer) clearTimeout(this.queryTimer);
    this.queryTimer = this.isRunning ? setTimeout(() => this.openStream(), QUERY_REST_MS) : null;
  }

  retryNow(): void {
    this.stream.retryNow();
  }

  private notice(state: StreamState): void {
    this.state = state;
    if (state.kind === "waiting") this.lostTimer ??= setTimeout(() => (this.lost = true), PATIENCE_MS);
    // While it connects nothing is known yet, neither of the good nor of the bad.
    else if (state.kind !== "connecting") {
      if (this.lostTimer) clearTimeout(this.lostTimer);
      this.lostTimer = null;
      if (state.kind !== "paused") this.lost = false;
    }
  }

  private openStream(): void {
    this.stream.open(EVENTS + (this.query ? `?${this.query}` : ""));
  }

  private begin(message: Snapshot): void {
    this.heardAt = Date.now();
    this.overview = message.overview;
    const known = new Set(this.moves.map((move) => move.id));
    // With none of the old ones among them there is a hole between, and it would go unnoticed.
    this.moves = merge(message.overview.moves, message.overview.moves.some((move) => known.has(move.id)) ? this.moves : []);
    this.feeds = new Map();
    this.relays = null;
    this.snapshots += 1;
    const page = message.receivers;
    if (page) this.listener?.({ rows: page.items, gone: [], whole: true, total: page.total, filtered: page.filtered });
  }

  private take(message: Delta): void {
    this.heardAt = Date.now();
    if (message.overview) this.overview = message.overview;
    const news = message.moves?.length ? message.moves : message.overview?.moves;
    if (news?.length) this.moves = merge(news, this.moves);
    if (message.feeds?.length || message.feeds_gone?.length) {
      const feeds = new Map(this.feeds);
      for (const feed of message.feeds ?? []) feeds.set(feed.id, feed);
      for (const id of message.feeds_gone ?? []) feeds.set(id, null);
      this.feeds = feeds;
    }
    if (message.relays) this.relays = message.relays;
    if (message.receivers?.length || message.gone?.length || message.filtered !== null) {
      this.listener?.({ rows: message.receivers ?? [], gone: message.gone ?? [], whole: false, total: message.total, filtered: message.filtered });
    }
  }

  private startTicking(): void {
    this.stopTicking();
    this.now = Date.now();
    this.tick = setInterval(() => (this.now = Date.now()), 1000);
  }

  private stopTicking(): void {
    if (this.tick) clearInterval(this.tick);
    this.tick = null;
  }

  private readonly onOnline = () => this.stream.retryNow();

  private readonly onVisibility = () => {
    if (this.hiddenTimer) clearTimeout(this.hiddenTimer);
    this.hiddenTimer = null;
    if (document.hidden) {
      this.hiddenTimer = setTimeout(() => {
        this.stream.pause();
        this.stopTicking();
      }, HIDDEN_GRACE_MS);
    } else {
      this.startTicking();
      this.stream.resume();
    }
  };
}

export const live = new Live();
