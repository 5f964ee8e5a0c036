// What a page costs the processor, whatever the processor is and whatever else it does.
import type { Browser, Page } from "playwright-core";

/**
 * So much time of a processor a piece takes on the machine of docs/benchmarks.md while nothing else runs there. Bounds
 * are of that machine; on one that is slower, or that shares its cores, the same work takes more of the processor's time.
 */
const PIECE_SECONDS = 0.016;
/** Pieces are spread over the time, as the page's own work is: in one go they would find everything at hand. */
const EVERY_MS = 250;

/** A fixed amount of work, of the kinds that the page does: objects, texts, rows of a table, and their layout. */
export function piece(): number {
  const rows = Array.from({ length: 150 }, (_, at) => ({ at, name: `receiver ${at}`, tags: ["one", "two"], since_ms: at * 1000 }));
  let sum = 0;
  for (let round = 0; round < 10; round += 1) {
    const read = JSON.parse(JSON.stringify(rows.map((row) => ({ ...row, round })))) as typeof rows;
    sum += read.toSorted((a, b) => (a.name < b.name ? 1 : -1)).length;
  }
  const table = document.createElement("table");
  for (const row of rows) {
    const line = table.insertRow();
    for (const text of [row.name, row.since_ms, row.tags.join(", ")]) line.insertCell().textContent = String(text);
  }
  document.body.replaceChildren(table);
  return sum + table.offsetHeight;
}

export interface Work {
  /** Seconds of a processor for each second, on a machine that is as fast as that of the bounds. */
  share: number;
  /** How many times slower than that machine this one was meanwhile; never below 1, so that a faster one makes nothing easier. */
  slowness: number;
  /** What a piece took. */
  piece: number;
  seconds: number;
  /** What the browser counted at the end, and how much more that was than at the beginning. */
  after: Record<string, number>;
  grown: Record<string, number>;
}

/** What the browser counts of a page's main thread; its times are times of the processor. */
async function counts(page: Page): Promise<() => Promise<Record<string, number>>> {
  const client = await page.context().newCDPSession(page);
  await client.send("Performance.enable", { timeDomain: "threadTicks" });
  return async () => Object.fromEntries((await client.send("Performance.getMetrics")).metrics.map((one) => [one.name, one.value]));
}

/**
 * Weighs what a page does, for so many seconds: against pieces of work that are done meanwhile by another process of the
 * browser, in a page that is empty. Nothing that the page does makes these slower but what it takes of the machine.
 */
export async function weigher(browser: Browser, page: Page): Promise<(seconds: number) => Promise<Work>> {
  const empty = await (await browser.newContext()).newPage();
  await empty.goto("about:blank");
  const [own, others] = await Promise.all([counts(page), counts(empty)]);
  // A function is quick only when it was done some times: it stays the same one.
  await empty.evaluate(`window.piece = ${piece}`);
  const once = () => empty.evaluate(() => (window as unknown as { piece(): number }).piece());
  for (let at = 0; at < 20; at += 1) await once();
  return async (seconds) => {
    const begun = performance.now();
    const [before, first] = await Promise.all([own(), others()]);
    let pieces = 0;
    do {
      await once();
      pieces += 1;
      await empty.waitForTimeout(EVERY_MS);
    } while (performance.now() - begun < seconds * 1000);
    const [after, last] = await Promise.all([own(), others()]);
    const lasted = (performance.now() - begun) / 1000;
    const grown = Object.fromEntries(Object.entries(after).map(([name, value]) => [name, value - (before[name] ?? 0)]));
    const took = ((last.TaskDuration ?? 0) - (first.TaskDuration ?? 0)) / pieces;
    const slowness = Math.max(1, took / PIECE_SECONDS);
    return { share: (grown.TaskDuration ?? 0) / lasted / slowness, slowness, piece: took, seconds: lasted, after, grown };
  };
}
