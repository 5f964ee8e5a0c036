import { untrack } from "svelte";
import { asProblem, type Problem } from "./api/problem";

/** Something that is loaded from the API: the last answer stays while a newer one is awaited. */
export interface Loaded<T> {
  readonly data: T | undefined;
  readonly problem: Problem | null;
  readonly busy: boolean;
  reload(): void;
  set(value: T): void;
}

/**
 * Loads when the page opens and whenever the key changes; an answer that comes too late for its
 * key is dropped. To be called while a component is set up.
 */
export function load<T>(key: () => string | null, get: (signal: AbortSignal) => Promise<T>, every?: () => number | null): Loaded<T> {
  let data = $state.raw<T | undefined>(undefined);
  let problem = $state.raw<Problem | null>(null);
  let busy = $state(true);
  let round = $state(0);
  let lastKey: string | null = null;
  let askedAt = 0;
  // Only another time sets the clock again, and not whatever it was worked out from.
  const wait = $derived(every?.() ?? null);

  $effect(() => {
    const now = key();
    void round;
    if (now === null) return;
    const abort = new AbortController();
    if (now !== lastKey) {
      lastKey = now;
      problem = null;
    }
    busy = true;
    askedAt = Date.now();
    get(abort.signal)
      .then((answer) => {
        if (abort.signal.aborted) return;
        data = answer;
        problem = null;
      })
      .catch((error: unknown) => {
        if (!abort.signal.aborted) problem = asProblem(error);
      })
      .finally(() => {
        if (!abort.signal.aborted) busy = false;
      });
    return () => abort.abort();
  });

  $effect(() => {
    const ms = wait;
    if (ms === null) return;
    // Not looked at for longer than that: what is shown is old.
    if (askedAt && Date.now() - askedAt > ms) untrack(() => (round += 1));
    const timer = setInterval(() => {
      if (!document.hidden) round += 1;
    }, ms);
    return () => clearInterval(timer);
  });

  return {
    get data() {
      return data;
    },
    get problem() {
      return problem;
    },
    get busy() {
      return busy;
    },
    reload: () => untrack(() => (round += 1)),
    set: (value: T) => (data = value),
  };
}
