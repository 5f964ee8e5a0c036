// Screenshots of every page over the stand-in: npm run shots [-- --out FOLDER --only WORD]
import { mkdir } from "node:fs/promises";
import path from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { startMock } from "../mock/server.mjs";

const { values } = parseArgs({ options: { out: { type: "string", default: process.env.SHOTS ?? "/tmp/flexfeed-shots" }, only: { type: "string" }, counts: { type: "string", default: "0,3,5000" } } });
const dist = new URL("../dist", import.meta.url).pathname;
const SIZES = [["desktop", 1440, 900], ["phone", 390, 844]];
const THEMES = ["light", "dark"];

function pagesFor(world) {
  const receiver = world.receivers.find((one) => one.rung === "unicast") ?? world.receivers[0];
  const update = world.updates[3];
  return [
    ["overview", "/"],
    ["overview-table", "/?show=table&range=24h"],
    ["receivers", "/receivers"],
    ["receivers-lag", "/receivers?rung=unicast,replicated&sort=since&order=desc"],
    ...(receiver ? [["receiver", `/receivers/${receiver.id}`]] : []),
    ["moves", "/moves"],
    ["channels", "/channels"],
    ["channel", "/channels/lore"],
    ["relays", "/relays"],
    ["feeds", "/feeds"],
    ["updates", "/updates"],
    ...(update ? [["update", `/updates/${update.channel}/${update.seq}`]] : []),
    ["settings-add", "/settings/add"],
    ["settings-source", "/settings/source"],
    ["settings-password", "/settings/password"],
    ["settings-users", "/settings/users"],
    ["settings-tokens", "/settings/tokens"],
    ["settings-audit", "/settings/audit"],
    ["api-docs", "/docs/api"],
    ["not-found", "/nowhere"],
  ];
}

await mkdir(values.out, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let made = 0;
for (const receivers of values.counts.split(",").map(Number)) {
  const mock = await startMock({ receivers, dist, signedIn: true });
  const visits = pagesFor(mock.world);
  const locked = await startMock({ receivers, dist, setup: receivers === 0 });
  if (receivers !== 3) visits.push(receivers === 0 ? ["setup", `${locked.url}/setup#one-time-token`] : ["sign-in", `${locked.url}/`]);
  for (const [size, width, height] of SIZES) {
    for (const theme of THEMES) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce" });
      const page = await context.newPage();
      for (const [name, address] of visits) {
        const file = `${name}-${size}-${theme}-${receivers}.png`;
        if (values.only && !values.only.split(",").some((word) => file.includes(word))) continue;
        await page.goto(address.startsWith("http") ? address : mock.url + address);
        await page.waitForSelector("h1", { timeout: 20_000 });
        await page.waitForTimeout(name === "api-docs" ? 2500 : 900);
        const fullPage = !name.startsWith("receivers") && name !== "api-docs";
        await page.screenshot({ path: path.join(values.out, file), fullPage });
        made += 1;
      }
      await context.close();
    }
  }
  await mock.close();
  await locked.close();
}
await browser.close();
console.log(`${made} screenshots are in ${values.out}`);
