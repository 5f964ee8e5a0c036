import { EventParser, type ServerEvent } from "./parser";

/** State of the stream. `paused`: the page is hidden. `waiting`: until the next attempt. */
export type StreamState =
  | { kind: "off" }
  | { kind: "connecting"; tries: number }
  | { kind: "live" }
  | { kind: "paused" }
  | { kind: "waiting"; tries: number; until: number; reason: string };

export interface StreamOptions {
  onEvent(event: ServerEvent): void;
  onState(state: StreamState): void;
  /** Every answer's head, for what stands in it. */
  onAnswer?(response: Response): void;
  /** The server says that no user is signed in. */
  onSignedOut(): void;
  /** What is asked for cannot be understood, and never will be: another address to follow, if there is one. */
  onRefused?(): string | null;
  fetch?: typeof fetch;
  now?: () => number;
  random?: () => number;
  firstDelayMs?: number;
  mostDelayMs?: number;
  /** Without a byte for so long the connection counts as dead. The console sends one each 15 s. */
  silenceMs?: number;
}

/** The wait before the n-th try in a row (from 1): doubling, bounded, jittered by a quarter. */
export function backoff(tries: number, first: number, most: number, random: number): number {
  const base = Math.min(most, first * 2 ** Math.min(tries - 1, 20));
  return Math.round(base * (0.75 + random * 0.5));
}

/**
 * An event stream over fetch: it connects again by itself with a growing wait, says which event
 * it saw last, notices a connection that went silent, and can be paused. `EventSource` tells
 * neither the status of a refused connection nor lets a new one begin behind the last event.
 */
export class EventStream {
  private url: string | null = null;
  private lastId: string | null = null;
  private abort: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private silence: ReturnType<typeof setTimeout> | null = null;
  private tries = 0;
  private isPaused = false;
  private serverWait: number | null = null;
  private readonly options: Required<StreamOptions>;

  constructor(options: StreamOptions) {
    this.options = {
      fetch: (input, init) => fetch(input, init),
      onAnswer: () => undefined,
      onRefused: () => null,
      now: () => Date.now(),
      random: Math.random,
      firstDelayMs: 1000,
      mostDelayMs: 30_000,
      silenceMs: 40_000,
      ...options,
    };
  }

  /** Follows this address from now on. Another address begins with a new snapshot. */
  open(url: string): void {
    if (url === this.url) return;
    this.url = url;
    this.lastId = null;
    this.tries = 0;
    this.again();
  }

  close(): void {
    this.url = null;
    this.lastId = null;
    // Reopening shows it.
    this.isPaused = false;
    this.stop();
    this.options.onState({ kind: "off" });
  }

  pause(): void {
    if (this.isPaused) return;
    this.isPaused = true;
    this.stop();
    if (this.url) this.options.onState({ kind: "paused" });
  }

  resume(): void {
    if (!this.isPaused) return;
    this.isPaused = false;
    this.tries = 0;
    this.again();
  }

  /** Tries at once, whatever wait is running. */
  retryNow(): void {
    this.again();
  }

  private again(): void {
    this.stop();
    if (this.url && !this.isPaused) void this.connect(this.url);
  }

  private stop(): void {
    this.abort?.abort();
    this.abort = null;
    if (this.timer) clearTimeout(this.timer);
    if (this.silence) clearTimeout(this.silence);
    this.timer = null;
    this.silence = null;
  }

  private listenForSilence(abort: AbortController): void {
    if (this.silence) clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      if (this.abort !== abort) return;
      this.fail("nothing came for too long");
    }, this.options.silenceMs);
  }

  private fail(reason: string, wait: number | null = null): void {
    this.stop();
    this.tries += 1;
    const { firstDelayMs, mostDelayMs, random, now } = this.options;
    const delay = Math.max(backoff(this.tries, firstDelayMs, mostDelayMs, random()), wait ?? 0, this.serverWait ?? 0);
    this.options.onState({ kind: "waiting", tries: this.tries, until: now() + delay, reason });
    this.timer = setTimeout(() => this.again(), delay);
  }

  private async connect(url: string): Promise<void> {
    const abort = new AbortController();
    this.abort = abort;
    this.options.onState({ kind: "connecting", tries: this.tries });
    this.listenForSilence(abort);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (this.lastId !== null) headers["last-event-id"] = this.lastId;
      const response = await this.options.fetch(url, {
        headers,
        signal: abort.signal,
        cache: "no-store",
        credentials: "same-origin",
      });
      if (this.abort !== abort) return;
      this.options.onAnswer(response);
      if (response.status === 401) {
        // The same address is requested again after a sign-in.
        this.url = null;
        this.lastId = null;
        this.stop();
        this.options.onSignedOut();
        return;
      }
      const other = response.status === 400 || response.status === 422 ? this.options.onRefused() : null;
      if (other !== null && other !== url) {
        this.open(other);
        return;
      }
      const type = response.headers.get("content-type") ?? "";
      if (!response.ok || !response.body || !type.startsWith("text/event-stream")) {
        const wait = Number(response.headers.get("retry-after"));
        void response.body?.cancel();
        this.fail(`it answered with status ${response.status}`, Number.isFinite(wait) ? Math.min(wait, 600) * 1000 : null);
        return;
      }
      await this.read(response.body, abort);
      if (this.abort === abort) this.fail("the connection ended");
    } catch (error) {
      if (this.abort !== abort) return;
      this.fail(error instanceof RangeError ? error.message : "it cannot be reached");
    }
  }

  private async read(body: ReadableStream<Uint8Array>, abort: AbortController): Promise<void> {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    const parser = new EventParser();
    parser.lastId = this.lastId;
    let isLive = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.abort !== abort) return;
      this.listenForSilence(abort);
      // A client that comes back and missed nothing is sent no event until something changes.
      if (!isLive) {
        isLive = true;
        this.options.onState({ kind: "live" });
        if (this.abort !== abort) return;
      }
      const events = parser.push(decoder.decode(value, { stream: true }));
      if (parser.retryMs !== null) this.serverWait = Math.min(parser.retryMs, 60_000);
      for (const event of events) {
        if (this.abort !== abort) return;
        this.lastId = event.id;
        // Only an event shows that the stream works; until then a server that hangs up is backed off from.
        this.tries = 0;
        this.options.onEvent(event);
      }
    }
  }
}
