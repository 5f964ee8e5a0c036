// Chromium for the tests, driven by playwright-core. CHROMIUM names another one.
import { fileURLToPath } from "node:url";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";
import { startMock } from "../mock/server.mjs";

export type Mock = Awaited<ReturnType<typeof startMock>>;

/** The stand-in with the built page, and a signed-in user. */
export function start(options: Record<string, unknown>): Promise<Mock> {
  return startMock({ dist: fileURLToPath(new URL("../dist", import.meta.url)), signedIn: true, ...options });
}

export function launch(): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
}

/** So long may each step take: a machine that is busy with something else is no fault of the page. */
const STEP_MS = 60_000;

/** A page that collects what goes wrong in it. */
export async function open(browser: Browser, options: { width?: number; height?: number; dark?: boolean; touch?: boolean; motion?: boolean } = {}): Promise<{ context: BrowserContext; page: Page; faults: string[] }> {
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1280, height: options.height ?? 860 },
    colorScheme: options.dark ? "dark" : "light",
    reducedMotion: options.motion ? "no-preference" : "reduce",
    hasTouch: options.touch ?? false,
  });
  context.setDefaultTimeout(STEP_MS);
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) faults.push(message.text());
  });
  return { context, page, faults };
}

/** Every page. */
export function addresses(mock: Mock): string[] {
  const receiver = mock.world.receivers[0];
  const update = mock.world.updates[0];
  return [
    "/", "/?show=table&range=24h", "/receivers", "/moves", "/channels", "/channels/lore", "/relays", "/feeds", "/updates",
    "/settings/add", "/settings/source", "/settings/users", "/settings/tokens", "/settings/audit", "/settings/password", "/nowhere",
    ...(receiver ? [`/receivers/${receiver.id}`, `/receivers/${receiver.id}?show=table`] : []),
    ...(update ? [`/updates/${update.channel}/${update.seq}`] : []),
  ];
}

/** Opens a page and waits until nothing on it is awaited any more. */
export async function visit(page: Page, address: string): Promise<void> {
  await page.goto(address);
  await page.waitForSelector("h1");
  await page.waitForFunction(() => !/^\s*Loading…\s*$/m.test(document.querySelector("main")?.innerText ?? "Loading…"));
}

/** How much wider than the window the page is, in pixels. */
export const overflow = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
