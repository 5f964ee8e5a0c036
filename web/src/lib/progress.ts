import type { Update } from "./api/types";

/** So long the source follows on how far an update has come. */
const FOLLOWED_MS = 3_600_000;
/** The source writes it down about a second after the update itself: what an older one lacks was never kept. */
const WRITTEN_MS = 60_000;

/** Whether how far an update has come may be known differently in a moment. */
export function isUnderWay(update: Pick<Update, "published_ms" | "progress">, now: number): boolean {
  const age = now - update.published_ms;
  if (!update.progress) return age < WRITTEN_MS;
  return age < FOLLOWED_MS && update.progress.delivered < update.progress.expected;
}

/** In what time it is worth asking again for these updates; null if there will be nothing new. */
export function askAgainMs(updates: readonly Pick<Update, "published_ms" | "progress">[], now: number): number | null {
  const open = updates.filter((one) => isUnderWay(one, now));
  if (!open.length) return null;
  return open.some((one) => now - one.published_ms < WRITTEN_MS) ? 3000 : 10_000;
}
