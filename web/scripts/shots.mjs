// Screenshots of every page over the stand-in: npm run shots [-- --out FOLDER --only WORD]
import { mkdir } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { startMock } from "../mock/server.mjs";

const dist = fileURLToPath(new URL("../dist", import.meta.url));
const SIZES = { desktop: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } };
const THEMES = ["light", "dark"];

const button = (name) => (page) => page.getByRole("button", { name, exact: true }).first().click();

/** Where the number of receivers makes no difference. */
const SAME = /^(settings-(add|source|password|users|tokens)|relays|feeds|api-docs|not-found|sign-in|setup)$/;

/** Every page, and what opens on it: name, address, what is done first, and in which size alone it can be. */
function visitsOf(mock, locked) {
  const { world } = mock;
  const receiver = world.receivers.find((one) => one.rung === "unicast") ?? world.receivers[0];
  const update = world.updates[3];
  const empty = world.receivers.length === 0;
  return [
    ["overview", "/"],
    ["overview-table", "/?show=table&range=24h"],
    ["receivers", "/receivers"],
    ["receivers-unicast", "/receivers?rung=unicast&sort=since&order=desc"],
    ...(receiver
      ? [
          ["receiver", `/receivers/${receiver.id}`],
          ["receiver-remove", `/receivers/${receiver.id}`, button("Remove")],
        ]
      : []),
    ["moves", "/moves"],
    ["channels", "/channels"],
    ["channels-add", "/channels", button("Add a channel")],
    ["channel", "/channels/lore"],
    ["relays", "/relays"],
    ["feeds", "/feeds"],
    ["feeds-add", "/feeds", async (page) => {
      await button("Add a feed")(page);
      await page.getByRole("textbox", { name: "Address", exact: true }).fill("https://example.org/feed");
      await button("Try it")(page);
      await page.getByText("A feed that was tried").waitFor();
    }],
    ...(empty ? [] : [["feeds-history", "/feeds", button("History")]]),
    ["updates", "/updates"],
    ...(update ? [["update", `/updates/${update.channel}/${update.seq}`]] : []),
    ["settings-add", "/settings/add"],
    ["settings-add-made", "/settings/add", async (page) => {
      await button("Make the line to run")(page);
      await page.getByText("Only the link").first().waitFor();
    }],
    ["settings-source", "/settings/source"],
    ["settings-password", "/settings/password"],
    ["settings-users", "/settings/users"],
    ["settings-users-add", "/settings/users", button("Add a user")],
    ["settings-tokens", "/settings/tokens"],
    ["settings-audit", "/settings/audit"],
    ["api-docs", "/docs/api", (page) => page.locator(".opblock").first().waitFor()],
    ["not-found", "/nowhere"],
    ["menu", "/channels", button("Menu"), "phone"],
    ["keys", "/relays", (page) => page.keyboard.press("?"), "desktop"],
    empty ? ["setup", `${locked.url}/setup#one-time-token`] : ["sign-in", `${locked.url}/`],
  ];
}

/** The page is there when nothing is awaited any more. */
async function settle(page) {
  await page.waitForSelector("h1");
  await page.waitForFunction(() => !/^\s*(Loading…|Making…|Trying…)\s*$/m.test(document.body.innerText));
}

/**
 * Takes them, of those whose file's name has one of the words in `only`. Returns how many, and what went wrong in the pages.
 * What can be seen at once is taken; of pages that go on below, all of it, up to four screens. What opens on a page, and
 * pages that are the same with any number of receivers, are taken with the first number only.
 */
export async function takeShots({ out, counts = [0, 3, 5000], only = null }) {
  await mkdir(out, { recursive: true });
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  let made = 0;
  const faults = [];
  async function series(mock, locked, size, theme, receivers, isFirst) {
    const phone = size === "phone";
    const context = await browser.newContext({ viewport: SIZES[size], colorScheme: theme, reducedMotion: "reduce", isMobile: phone, hasTouch: phone });
    // Of many pictures one always takes long, on a machine that has much else to do.
    context.setDefaultTimeout(120_000);
    const page = await context.newPage();
    let file = "";
    page.on("pageerror", (error) => faults.push(`${file}: ${error.message}`));
    for (const [name, address, before, alone] of visitsOf(mock, locked)) {
      file = `${name}-${size}-${theme}-${receivers}.png`;
      if ((alone && alone !== size) || (!isFirst && (before || SAME.test(name))) || (only && !only.some((word) => file.includes(word)))) continue;
      try {
        await page.setViewportSize(SIZES[size]);
        await page.goto(address.startsWith("http") ? address : mock.url + address);
        await settle(page);
        if (before) {
          await before(page);
          await settle(page);
        }
        await page.waitForTimeout(350);
        // The frame of an entry is only drawn where it is seen; a dialog and a table are as high as the screen.
        const isWhole = !before && !name.startsWith("receivers");
        if (isWhole) {
          const whole = await page.evaluate(() => document.documentElement.scrollHeight);
          await page.setViewportSize({ width: SIZES[size].width, height: Math.max(SIZES[size].height, Math.min(whole, 4 * SIZES[size].height)) });
          await page.waitForTimeout(250);
        }
        await page.screenshot({ path: path.join(out, file) });
        made += 1;
      } catch (error) {
        faults.push(`${file}: ${error.message}`);
      }
    }
    await context.close();
  }
  for (const receivers of counts) {
    const mock = await startMock({ receivers, dist, signedIn: true });
    const locked = await startMock({ receivers: Math.min(receivers, 3), dist, setup: receivers === 0 });
    for (const size of Object.keys(SIZES)) await Promise.all(THEMES.map((theme) => series(mock, locked, size, theme, receivers, receivers === counts[0])));
    await mock.close();
    await locked.close();
  }
  await browser.close();
  return { made, faults };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { out: { type: "string", default: process.env.FLEXFEED_SHOTS ?? "/tmp/flexfeed-shots" }, only: { type: "string" }, counts: { type: "string", default: "0,3,5000" } } });
  const { made, faults } = await takeShots({ out: values.out, counts: values.counts.split(",").map(Number), only: values.only?.split(",") ?? null });
  for (const fault of faults) console.error(fault);
  console.log(`${made} screenshots are in ${values.out}`);
  if (faults.length) process.exitCode = 1;
}
