// Chromium for the tests, driven by playwright-core. CHROMIUM names another one.
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";

export function launch(): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: [
      "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
}

/** A page that collects what goes wrong in it. */
export async function open(browser: Browser, options: { width?: number; height?: number; dark?: boolean; touch?: boolean } = {}): Promise<{ context: BrowserContext; page: Page; faults: string[] }> {
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1280, height: options.height ?? 860 },
    colorScheme: options.dark ? "dark" : "light",
    reducedMotion: "reduce",
    hasTouch: options.touch ?? false,
  });
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) faults.push(message.text());
  });
  return { context, page, faults };
}
