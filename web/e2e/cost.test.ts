// What the page costs the browser while 5,000 receivers change.
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { startMock } from "../mock/server.mjs";
import { launch, open } from "./browser";

const MOST_SHARE = 0.05;
const SECONDS = 20;
/** A page that costs too much does so each time; a machine that is busy with something else does not. */
const TRIES = 3;

it.each(["/", "/receivers"])("takes at most a twentieth of a core: %s", async (address) => {
  const mock = await startMock({ receivers: 5000, dist: fileURLToPath(new URL("../dist", import.meta.url)), signedIn: true });
  const browser = await launch();
  try {
    const { page, faults } = await open(browser, { width: 1440, height: 900 });
    await page.goto(mock.url + address);
    await page.locator('[data-live="live"]').waitFor();
    await page.waitForTimeout(4000);
    const client = await page.context().newCDPSession(page);
    await client.send("Performance.enable", { timeDomain: "threadTicks" });
    const read = async () => {
      const { metrics } = await client.send("Performance.getMetrics");
      return Object.fromEntries(metrics.map((one) => [one.name, one.value]));
    };
    let share = 1;
    let nodes = 0;
    for (let tried = 0; tried < TRIES && share >= MOST_SHARE; tried += 1) {
      const before = await read();
      const begun = performance.now();
      await page.waitForTimeout(SECONDS * 1000);
      const after = await read();
      const seconds = (performance.now() - begun) / 1000;
      share = ((after.TaskDuration ?? 0) - (before.TaskDuration ?? 0)) / seconds;
      nodes = after.Nodes ?? 0;
      console.log(`web_page_core_share ${address} ${share.toFixed(4)} (script ${(((after.ScriptDuration ?? 0) - (before.ScriptDuration ?? 0)) / seconds).toFixed(4)}, layout ${(((after.LayoutDuration ?? 0) - (before.LayoutDuration ?? 0)) / seconds).toFixed(4)}, heap ${((after.JSHeapUsedSize ?? 0) / 1e6).toFixed(1)} MB, ${nodes} nodes)`);
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
