// What the page costs the browser while 5,000 receivers change.
import { expect, it } from "vitest";
import { launch, open, start } from "./browser";
import { piece, weigher } from "./work";

const MOST_SHARE = 0.05;
const SECONDS = 20;
/** A page that costs too much does so each time; a machine that is busy with something else does not. */
const TRIES = 3;

it.each(["/", "/receivers"])("takes at most a twentieth of a core: %s", async (address) => {
  const mock = await start({ receivers: 5000 });
  const browser = await launch();
  try {
    const { page, faults } = await open(browser, { width: 1440, height: 900 });
    await page.goto(mock.url + address);
    await page.locator('[data-live="live"]').waitFor();
    await page.waitForTimeout(4000);
    const weigh = await weigher(browser, page);
    let share = 1;
    let nodes = 0;
    for (let tried = 0; tried < TRIES && share >= MOST_SHARE; tried += 1) {
      const { grown, after, seconds, slowness, ...work } = await weigh(SECONDS);
      share = work.share;
      nodes = after.Nodes ?? 0;
      const each = (name: string) => ((grown[name] ?? 0) / seconds).toFixed(4);
      console.log(`web_page_core_share ${address} ${share.toFixed(4)} (as measured ${each("TaskDuration")} on a machine ${slowness.toFixed(2)} times slower; script ${each("ScriptDuration")}, layout ${each("LayoutDuration")}, heap ${((after.JSHeapUsedSize ?? 0) / 1e6).toFixed(1)} MB, ${nodes} nodes)`);
    }
    expect(share).toBeGreaterThan(0);
    expect(share).toBeLessThan(MOST_SHARE);
    expect(nodes).toBeLessThan(20_000);
    expect(faults).toEqual([]);
  } finally {
    await browser.close();
    await mock.close();
  }
});

it.each([1, 4])("weighs all of the work that a page does, and the same on a machine %s times slower", async (times) => {
  const browser = await launch();
  try {
    const { page } = await open(browser);
    const weigh = await weigher(browser, page);
    for (const one of browser.contexts().flatMap((context) => context.pages())) await (await one.context().newCDPSession(one)).send("Emulation.setCPUThrottlingRate", { rate: times });
    await page.evaluate(`window.done = 0; window.piece = ${piece}; setInterval(() => { window.piece(); window.done += 1; }, 100)`);
    const done = () => page.evaluate(() => (window as unknown as { done: number }).done);
    // A function is quick only when it was done some times.
    await page.waitForTimeout(3000);
    const before = await done();
    const { share, seconds, slowness, piece: took } = await weigh(8);
    // Each piece weighs what it weighs elsewhere: twice the work is twice the share.
    const each = (share * seconds) / ((await done()) - before);
    expect(each / (took / slowness)).toBeGreaterThan(0.6);
  } finally {
    await browser.close();
  }
});
