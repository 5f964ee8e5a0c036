import type { Delta, Feed, Move, Overview, Receiver, Relay } from "../api/types";
import { session } from "../session.svelte";
import { EventStream, type StreamState } from "./stream";

/** A tab that is hidden for so long lets the stream go. Flipping through tabs does not. */
const HIDDEN_GRACE_MS = 3000;
/** Other filters, or another part of the table: wait until the hand rests. */
const QUERY_REST_MS = 350;
const KEPT_MOVES = 200;

export type ReceiverListener = (rows: Receiver[], gone: string[], whole: boolean, message: Delta) => void;

/** What the console sends by itself. One stream for the whole page. */
class Live {
  state = $state.raw<StreamState>({ kind: "off" });
  overview = $state.raw<Overview | null>(null);
  /** Newest first. */
  moves = $state.raw<Move[]>([]);
  feeds = $state.raw<Feed[] | null>(null);
  relays = $state.raw<Relay[] | null>(null);
  /** When the last message came, by this computer's clock. */
  heardAt = $state(0);
  /** Seconds of this computer's clock, ticking only while somebody looks. */
  now = $state(Date.now());
  /** The console's clock minus this computer's. */
  skewMs = 0;

  private listener: ReceiverListener | null = null;
  private query = "";
  private queryTimer: ReturnType<typeof setTimeout> | null = null;
  private hiddenTimer: ReturnType<typeof setTimeout> | null = null;
  private tick: ReturnType<typeof setInterval> | null = null;
  private readonly stream = new EventStream({
    onState: (state) => (this.state = state),
    onSignedOut: () => session.lost(),
    onEvent: (event) => {
      if (event.type !== "snapshot" && event.type !== "delta") return;
      let message: Delta;
      try {
        message = JSON.parse(event.data) as Delta;
      } catch {
        return;
      }
      this.take(message, event.type === "snapshot");
    },
  });

  start(): void {
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
    this.stream.close();
    this.overview = null;
    this.moves = [];
    this.feeds = null;
    this.relays = null;
  }

  /** Asks for receivers, too: those of this query (as in `GET /receivers`). Empty: none. */
  follow(query: string, listener: ReceiverListener | null): void {
    this.listener = listener;
    if (query === this.query) return;
    this.query = query;
    if (this.queryTimer) clearTimeout(this.queryTimer);
    this.queryTimer = setTimeout(() => this.openStream(), QUERY_REST_MS);
  }

  retryNow(): void {
    this.stream.retryNow();
  }

  private openStream(): void {
    this.stream.open("/api/v1/events" + (this.query ? `?${this.query}` : ""));
  }

  private take(message: Delta, whole: boolean): void {
    this.heardAt = Date.now();
    if (message.overview) {
      this.skewMs = message.overview.as_of_ms - this.heardAt;
      this.overview = message.overview;
    }
    const news = message.moves ?? (whole ? message.overview?.moves : undefined);
    if (news?.length) {
      const seen = new Set(whole ? [] : this.moves.map((move) => move.id));
      const fresh = news.filter((move) => !seen.has(move.id));
      if (fresh.length) {
        this.moves = [...fresh, ...(whole ? [] : this.moves)].sort((a, b) => b.at_ms - a.at_ms || b.id - a.id).slice(0, KEPT_MOVES);
      }
    } else if (whole) this.moves = [];
    if (message.feeds) this.feeds = message.feeds;
    if (message.relays) this.relays = message.relays;
    if (message.receivers || message.gone?.length || whole) {
      this.listener?.(message.receivers ?? [], message.gone ?? [], whole, message);
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
