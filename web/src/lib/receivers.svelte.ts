import { api } from "./api/client";
import { asProblem, type Problem } from "./api/problem";
import type { Receiver } from "./api/types";
import { live } from "./live/live.svelte";
import { queryText } from "./router.svelte";
import { PageCache, pagesOf } from "./virtual";

export const PAGE_ROWS = 100;
const KEPT_PAGES = 40;
/** Interval of requests for the order, which never changes under the pointer. */
const REORDER_MS = 15_000;
const ANEW_MS = 5000;
const REST_MS = 120;

export type Filters = Record<string, string | null>;

/**
 * The rows of the receivers' table, of which only the pages in sight are asked for. What changes
 * comes by the stream and replaces rows where they are; nothing jumps under the hand.
 */
export class ReceiverRows {
  /** So many rows the table has. */
  filtered = $state(0);
  /** As many fit the filters by the last word of the stream, of so many. */
  fitting = $state(0);
  total = $state(0);
  /** Rows that stand in the table although they are not in this part of the list any more, and since when: nothing new comes of them. */
  left = $state.raw<ReadonlyMap<string, number>>(new Map());
  problem = $state.raw<Problem | null>(null);
  loaded = $state(false);
  /** Grows with each change of what the rows hold. */
  version = $state(0);

  private cache = new PageCache<Receiver>(PAGE_ROWS, KEPT_PAGES);
  private asked = new Set<number>();
  private abort = new AbortController();
  private filters: Filters = {};
  private key = "";
  private wanted: number[] = [];
  private refreshedAt = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private reorder: ReturnType<typeof setInterval> | null = null;

  constructor(private readonly busyHand: () => boolean) {}

  start(): void {
    this.reorder = setInterval(() => {
      if (!document.hidden && !this.busyHand() && live.state.kind === "live") this.refresh();
    }, REORDER_MS);
  }

  stop(): void {
    if (this.reorder) clearInterval(this.reorder);
    if (this.timer) clearTimeout(this.timer);
    this.abort.abort();
    live.follow("", null);
  }

  /** Other filters or another order: everything again. */
  show(filters: Filters): void {
    const key = queryText(filters);
    if (key === this.key && this.loaded) return;
    this.key = key;
    this.filters = filters;
    this.forget();
    this.loaded = false;
    this.filtered = this.fitting = 0;
    this.problem = null;
    this.wanted = [0];
    this.ask();
    this.follow(0, PAGE_ROWS);
  }

  /** Asks for the pages in sight again; what is shown stays until they are here. */
  refresh(): void {
    this.refreshedAt = Date.now();
    this.abort.abort();
    this.abort = new AbortController();
    this.asked.clear();
    const pages = this.wanted.length ? this.wanted : [0];
    for (const page of pages) void this.get(page, true);
  }

  /** These rows are in sight. */
  look(first: number, end: number): void {
    this.wanted = pagesOf(first, Math.min(end, this.filtered), PAGE_ROWS);
    this.cache.touch(this.wanted);
    if (this.timer) clearTimeout(this.timer);
    // Rows that only fly by are not asked for.
    this.timer = setTimeout(() => {
      this.ask();
      if (end > first) this.follow(first, end - first);
    }, REST_MS);
  }

  row(index: number): Receiver | undefined {
    void this.version;
    return this.cache.row(index);
  }

  replace(receiver: Receiver): void {
    if (this.cache.update((row) => (row.id === receiver.id ? receiver : row))) this.version += 1;
  }

  private forget(): void {
    this.abort.abort();
    this.abort = new AbortController();
    this.cache.clear();
    this.asked.clear();
    this.left = new Map();
    this.version += 1;
  }

  /** This page is of now: of those who left, only rows of other pages are still there. */
  private stay(fresh: number): void {
    if (!this.left.size) return;
    const old = new Set<string>();
    this.cache.each((row, index) => {
      if (Math.floor(index / PAGE_ROWS) !== fresh) old.add(row.id);
    });
    this.left = new Map([...this.left].filter(([id]) => old.has(id)));
  }

  private returned(rows: readonly Receiver[]): void {
    if (rows.some((row) => this.left.has(row.id))) {
      const here = new Set(rows.map((row) => row.id));
      this.left = new Map([...this.left].filter(([id]) => !here.has(id)));
    }
  }

  /** These rows are not what is watched any more. */
  private leave(isGone: (row: Receiver, index: number) => boolean): void {
    const left = new Map(this.left);
    this.cache.each((row, index) => {
      if (!left.has(row.id) && isGone(row, index)) left.set(row.id, Date.now() + live.skewMs);
    });
    if (left.size > this.left.size) this.left = left;
  }

  private ask(): void {
    for (const page of this.wanted) if (!this.cache.has(page) && !this.asked.has(page)) void this.get(page, false);
  }

  private async get(page: number, again: boolean): Promise<void> {
    const { signal } = this.abort;
    this.asked.add(page);
    try {
      const answer = await api.receivers({ ...this.filters, offset: page * PAGE_ROWS, limit: PAGE_ROWS }, signal);
      if (signal.aborted) return;
      // What lies out of sight may be elsewhere by now.
      if (again && (answer.filtered !== this.filtered || this.left.size)) this.cache.keep(this.wanted);
      this.cache.put(page, answer.items);
      this.stay(page);
      this.filtered = this.fitting = answer.filtered;
      this.total = answer.total;
      this.loaded = true;
      this.problem = null;
      this.version += 1;
    } catch (error) {
      if (signal.aborted) return;
      this.problem = asProblem(error);
    } finally {
      this.asked.delete(page);
    }
  }

  private follow(first: number, rows: number): void {
    // By steps, so that a little scrolling asks for nothing new.
    const offset = Math.max(0, Math.floor((first - 10) / 25) * 25);
    const limit = Math.min(500, Math.ceil((rows + 35) / 25) * 25);
    live.follow(queryText({ ...this.filters, offset: offset || null, limit }), ({ rows: changed, gone, whole, total, filtered }) => {
      const byId = new Map(changed.map((row) => [row.id, row]));
      this.returned(changed);
      if (whole) this.leave((row, index) => index >= offset && index < offset + limit && !byId.has(row.id));
      else if (gone.length) {
        const ids = new Set(gone);
        this.leave((row) => ids.has(row.id));
      }
      if (byId.size && this.cache.update((row) => byId.get(row.id) ?? row)) this.version += 1;
      if (!this.loaded || total === null || filtered === null) return;
      // A receiver is new or gone: soon, but not each second, and not under the pointer.
      const isOther = total !== this.total || filtered !== this.filtered || this.left.size > 0;
      this.fitting = filtered;
      this.total = total;
      if (isOther && (!this.filtered || (!this.busyHand() && Date.now() - this.refreshedAt > ANEW_MS))) this.refresh();
    });
  }
}
