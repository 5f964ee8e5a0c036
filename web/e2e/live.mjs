// Whether the page agrees with the source: watches one receiver fall off multicast and come back, at
// the source and in the page at the same time. Against a real console; one JSON object per line.
// Standard input says what to look out for, one line each, "follow RUNG NAME": it says "watching", then
// what it sees, takes pictures called after NAME, and says "seen". At the end of input it ends.
//
// node e2e/live.mjs --console URL --source URL --user NAME --password-file FILE --receiver NAME
//                   --others NAME,NAME --shots DIR
import { mkdir, readFile } from "node:fs/promises";
import path from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

/** So long may each step take, as each wait of the scenario may. */
const PHASE_MS = 120_000;
const STEP_MS = 50;

const { values } = parseArgs({
  options: {
    console: { type: "string" },
    source: { type: "string" },
    user: { type: "string" },
    "password-file": { type: "string" },
    receiver: { type: "string" },
    others: { type: "string", default: "" },
    shots: { type: "string" },
  },
});
for (const [name, value] of Object.entries({ console: values.console, source: values.source, user: values.user, "password-file": values["password-file"], receiver: values.receiver })) {
  if (!value) {
    console.error(`--${name} is missing`);
    process.exit(1);
  }
}
const base = values.console.replace(/\/+$/, "");
const status = new URL("/status.json", values.source);
const others = values.others.split(",").filter(Boolean);
const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class GivenUp extends Error {}

/** Asks until there is an answer, or gives up with a line that says what was waited for. */
async function until(what, ask) {
  const end = Date.now() + PHASE_MS;
  let last;
  while (Date.now() < end) {
    const { done, seen } = await ask();
    if (done !== undefined) return done;
    last = seen;
    await sleep(STEP_MS);
  }
  throw new GivenUp(`${what} did not happen within ${PHASE_MS / 1000} s; last seen: ${JSON.stringify(last)}`);
}

/** The rung of a receiver by the source's own word. */
async function atSource(name) {
  try {
    const answer = await fetch(status, { signal: AbortSignal.timeout(2000) });
    const { receivers = [] } = await answer.json();
    return receivers.find((one) => one.name === name)?.rung ?? null;
  } catch (error) {
    return `unreadable: ${error instanceof Error ? error.message : error}`;
  }
}

/** What the table shows: rung, cause and text of each of these receivers. */
function inPage(page, names) {
  return page.evaluate((wanted) => {
    const found = {};
    for (const row of document.querySelectorAll("[data-receiver]")) {
      const name = row.getAttribute("data-name");
      if (wanted.includes(name)) {
        found[name] = { rung: row.getAttribute("data-rung"), cause: row.getAttribute("data-cause"), text: row.innerText.replace(/\s+/g, " ").trim() };
      }
    }
    return found;
  }, names);
}

async function shot(page, name) {
  if (values.shots) await page.screenshot({ path: path.join(values.shots, `${name}.png`) });
}

/** Source and page, each until it shows the rung; neither waits for the other. */
async function follow(page, rung) {
  say({ event: "watching" });
  const source = until(`${values.receiver} on ${rung} at the source`, async () => {
    const seen = await atSource(values.receiver);
    return seen === rung ? { done: seen } : { seen };
  }).then((seen) => say({ event: "source", rung: seen }));
  const shown = until(`${values.receiver} on ${rung} in the page`, async () => {
    const seen = (await inPage(page, [values.receiver]))[values.receiver] ?? null;
    return seen?.rung === rung ? { done: seen } : { seen };
  }).then((seen) => say({ event: "page", ...seen, at_ms: Date.now() }));
  await Promise.all([source, shown]);
  const rows = await inPage(page, others);
  say({ event: "others", rungs: others.map((name) => rows[name]?.rung ?? null) });
}

async function overview(context, name) {
  const page = await context.newPage();
  try {
    await page.goto(base);
    await page.getByTestId("verdict").waitFor();
    await sleep(1000);
    await shot(page, name);
  } finally {
    await page.close();
  }
}

if (values.shots) await mkdir(values.shots, { recursive: true });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
let code = 0;
try {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: "light", reducedMotion: "reduce" });
  context.setDefaultTimeout(PHASE_MS);
  const page = await context.newPage();
  await page.goto(`${base}/receivers`);
  await page.getByLabel("Name", { exact: true }).fill(values.user);
  await page.getByLabel("Password", { exact: true }).fill((await readFile(values["password-file"], "utf8")).trim());
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Receivers" }).waitFor();
  const everybody = [values.receiver, ...others];
  await until("everybody on multicast in the page", async () => {
    const seen = await inPage(page, everybody);
    return everybody.every((name) => seen[name]?.rung === "multicast") ? { done: true } : { seen };
  });
  await page.locator('[data-live="live"]').waitFor();
  await shot(page, "receivers-start");
  await overview(context, "overview-start");
  say({ event: "ready" });
  for await (const line of createInterface({ input: process.stdin })) {
    const [order, rung, name] = line.split(" ");
    if (order !== "follow" || !rung || !name) throw new Error(`standard input says ${JSON.stringify(line)}`);
    await follow(page, rung);
    await shot(page, `receivers-${name}`);
    await overview(context, `overview-${name}`);
    say({ event: "seen" });
  }
  const state = await context.storageState();
  const phone = await browser.newContext({ viewport: { width: 390, height: 844 }, colorScheme: "dark", reducedMotion: "reduce", storageState: state });
  phone.setDefaultTimeout(PHASE_MS);
  await overview(phone, "overview-returned-phone");
  const small = await phone.newPage();
  await small.goto(`${base}/receivers`);
  await small.locator("[data-receiver]").first().waitFor();
  await shot(small, "receivers-returned-phone");
} catch (error) {
  console.error(error instanceof GivenUp ? error.message : `the page could not be watched: ${error instanceof Error ? error.message : error}`);
  code = 1;
} finally {
  await browser.close();
}
process.exitCode = code;
