import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { HOSTILE } from "../mock/world.mjs";
import { addresses, launch, open, overflow, start, visit } from "./browser";

const openapi = fileURLToPath(new URL("../../docs/openapi.json", import.meta.url));
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");

let browser: Browser;
beforeAll(async () => {
  browser = await launch();
});
afterAll(async () => {
  await browser?.close();
});

/** What axe finds wrong by WCAG 2.2 A and AA. Runs in a world of its own, past the page's policy. */
async function audit(page: Page): Promise<string[]> {
  const client = await page.context().newCDPSession(page);
  const { frameTree } = await client.send("Page.getFrameTree");
  const { executionContextId } = await client.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id, worldName: "axe" });
  await client.send("Runtime.evaluate", { expression: axe, contextId: executionContextId });
  const { result, exceptionDetails } = await client.send("Runtime.evaluate", {
    expression: `axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"], iframes: false }).then((found) => JSON.stringify(found.violations.map((one) => one.id + ": " + one.help + " at " + one.nodes.slice(0, 3).map((node) => node.target.join(" ") + " " + (node.any[0]?.message ?? "")).join(" | "))))`,
    contextId: executionContextId,
    awaitPromise: true,
    returnByValue: true,
  });
  await client.detach();
  if (exceptionDetails) throw new Error(exceptionDetails.text);
  return JSON.parse(String(result.value)) as string[];
}

describe("every page", () => {
  for (const dark of [false, true]) {
    it(`is accessible, ${dark ? "dark" : "light"}`, async () => {
      const mock = await start({ receivers: 40 });
      const { page, faults, context } = await open(browser, { dark });
      const found: string[] = [];
      for (const address of addresses(mock)) {
        await visit(page, mock.url + address);
        for (const fault of await audit(page)) found.push(`${address}: ${fault}`);
      }
      expect(found).toEqual([]);
      expect(faults).toEqual([]);
      await context.close();
      await mock.close();
    });
  }

  it("is accessible before anybody is signed in", async () => {
    const mock = await start({ receivers: 0, signedIn: false, setup: true });
    for (const dark of [false, true]) {
      const { page, context } = await open(browser, { dark });
      for (const address of ["/", "/setup", "/setup#one-time-token"]) {
        await page.goto("about:blank");
        await visit(page, mock.url + address);
        expect(await audit(page), address).toEqual([]);
      }
      await context.close();
    }
    await mock.close();
  });

  it("fits 360 pixels, without users and with hostile texts everywhere", async () => {
    for (const options of [{ receivers: 0 }, { receivers: 12, hostile: true, policy: false }]) {
      const mock = await start(options);
      const { page, faults, context } = await open(browser, { width: 360, height: 740 });
      const wide: string[] = [];
      for (const address of addresses(mock)) {
        await visit(page, mock.url + address);
        const more = await overflow(page);
        if (more > 0) wide.push(`${address}: ${more} px too wide`);
        expect(await page.evaluate(() => (window as unknown as { __hit?: number }).__hit), address).toBeUndefined();
      }
      expect(wide).toEqual([]);
      expect(faults).toEqual([]);
      await context.close();
      await mock.close();
    }
  });
});

describe("the API's page", () => {
  it.skipIf(!existsSync(openapi))("is drawn from the API's own description, with nothing from elsewhere", async () => {
    for (const signedIn of [true, false]) {
      const mock = await start({ receivers: 0, signedIn, openapi });
      const { page, faults, context } = await open(browser, { dark: signedIn });
      const elsewhere: string[] = [];
      page.on("request", (request) => {
        if (!request.url().startsWith(mock.url) && !request.url().startsWith("data:")) elsewhere.push(request.url());
      });
      await page.goto(`${mock.url}/docs/api`);
      await page.locator(".opblock").first().waitFor();
      await page.locator(".opblock-summary-control").first().click();
      await page.locator(".opblock-body").first().waitFor();
      expect(elsewhere).toEqual([]);
      expect(faults).toEqual([]);
      await context.close();
      await mock.close();
    }
  });
});

describe("hostile texts", () => {
  it("are shown as texts, and no script of theirs runs, even without the policy", async () => {
    const mock = await start({ receivers: 12, hostile: true, policy: false });
    const { page, faults, context } = await open(browser);
    for (const address of addresses(mock)) {
      await visit(page, mock.url + address);
      await page.waitForTimeout(150);
      expect(await page.evaluate(() => (window as unknown as { __hit?: number }).__hit), address).toBeUndefined();
      expect(await page.locator("main script, main img, main svg[onload], main [onerror]").count(), address).toBe(0);
      expect(await overflow(page), address).toBeLessThanOrEqual(0);
    }
    await visit(page, `${mock.url}/receivers`);
    await page.locator("[data-receiver]").first().waitFor();
    const text = await page.locator("[role=table]").innerText();
    expect(text).toContain(HOSTILE.script.slice(0, 40));
    expect(text).toContain("👩‍👩‍👧‍👦");
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });

  it.each([true, false])("of an entry are read in a frame that can do nothing (policy: %s)", async (policy) => {
    const mock = await start({ receivers: 3, hostile: true, policy });
    const update = mock.world.updates[0]!;
    const { page, faults, context } = await open(browser);
    await visit(page, `${mock.url}/updates/${update.channel}/${update.seq}`);
    const frame = page.frameLocator("iframe");
    await frame.locator("li").first().waitFor();
    expect(await page.locator("iframe").getAttribute("sandbox")).not.toMatch(/allow-(scripts|same-origin|forms|top)/);
    expect(await frame.locator("script, img, form, input, iframe, style, [onerror]").count()).toBe(0);
    expect(await frame.locator("a").evaluateAll((links) => links.map((link) => link.getAttribute("href")))).not.toContain("javascript:parent.__hit=1");
    // The frame's own style sheet came through the policy.
    expect(await frame.locator("pre").first().evaluate((element) => getComputedStyle(element).whiteSpace)).toMatch(/pre-wrap/);
    await page.getByRole("button", { name: "As it came" }).click();
    await frame.locator("pre", { hasText: "<script>parent.__hit=1" }).waitFor();
    expect(await page.evaluate(() => (window as unknown as { __hit?: number }).__hit)).toBeUndefined();
    // The link of this entry is javascript: it is shown, and leads nowhere.
    expect(await page.locator("main a[href^='javascript']").count()).toBe(0);
    // The browser tells of what it does not run while the text is read, in a document that is never shown.
    expect(faults.filter((fault) => !/Executing inline event handler|Applying inline style/.test(fault))).toEqual([]);
    await context.close();
    await mock.close();
  });
});

describe("signing in", () => {
  it("goes by name and password, out, and tells when a session has ended", async () => {
    const mock = await start({ receivers: 3, signedIn: false });
    const { page, context } = await open(browser);
    await visit(page, `${mock.url}/receivers?rung=unicast`);
    await page.getByLabel("Name").fill("ada");
    await page.getByLabel("Password").fill("wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("Name and password do not fit together.").waitFor();
    await page.getByLabel("Password").fill("correct horse");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Receivers" }).waitFor();
    expect(page.url()).toContain("rung=unicast");
    mock.endSessions();
    mock.dropStreams();
    await page.getByText("Your session has ended").waitFor();
    await page.getByLabel("Name").fill("vera");
    await page.getByLabel("Password").fill("battery staple");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Receivers" }).waitFor();
    expect(await page.getByRole("link", { name: "Add a receiver" }).count()).toBe(0);
    await page.goto(`${mock.url}/settings/users`);
    await page.getByText("Settings are for operators").waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("heading", { name: "Sign in to the console" }).waitFor();
    await context.close();
    await mock.close();
  });

  it("begins with the one-time link, which leaves no trace in the address", async () => {
    const mock = await start({ receivers: 0, signedIn: false, setup: true });
    const { page, context } = await open(browser);
    await visit(page, `${mock.url}/`);
    await page.getByText("No user can sign in yet").waitFor();
    await page.goto("about:blank");
    await visit(page, `${mock.url}/setup#one-time-token`);
    expect(page.url()).not.toContain("one-time-token");
    await page.getByLabel("Name").fill("first");
    await page.locator("input[name=new-password]").fill("long enough it is");
    await page.getByLabel("Repeat the password").fill("long enough it i");
    await page.getByText("The two are not the same.").waitFor();
    await page.getByLabel("Repeat the password").fill("long enough it is");
    await page.getByRole("button", { name: "Create the first operator" }).click();
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    expect(mock.requests.some((one: { path: string }) => one.path.includes("one-time-token"))).toBe(false);
    await context.close();
    await mock.close();
  });
});

describe("live", () => {
  it("shows a move with its cause, in the row, on the receiver's page and among the moves", async () => {
    const mock = await start({ receivers: 30, tickMs: 100_000 });
    const victim = mock.world.receivers.find((one: { rung: string }) => one.rung === "multicast")!;
    const { page, faults, context } = await open(browser);
    await visit(page, `${mock.url}/receivers?q=${victim.id.slice(0, 12)}`);
    const row = page.locator(`[data-receiver="${victim.id}"]`);
    await row.waitFor();
    await page.locator('[data-live="live"]').waitFor();
    await page.waitForTimeout(600);
    // A list that asks again, every 15 s, could bring it, too: only the stream can here.
    const isList = (url: URL) => url.pathname === "/api/v1/receivers";
    await page.route(isList, (route) => route.abort());
    mock.live({ changed: [victim], moves: [mock.world.move(victim, "unicast", "heartbeat-lost")] });
    await page.locator(`[data-receiver="${victim.id}"][data-rung="unicast"][data-cause="heartbeat-lost"]`).waitFor();
    await page.unroute(isList);
    await row.getByRole("link").first().click();
    await page.locator('[data-testid="rung"] [data-rung="unicast"]').waitFor();
    mock.live({ changed: [victim], moves: [mock.world.move(victim, "multicast", "joined")] });
    await page.locator('[data-testid="rung"] [data-rung="multicast"]').waitFor();
    await page.goto(mock.url);
    const first = page.locator('[data-testid="moves"] li').first();
    await first.getByText("climbed from").waitFor();
    await first.locator('[data-cause="joined"]').focus();
    await page.getByRole("tooltip").getByText("has proved that the flow's packets reach it").waitFor();
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });

  it("says quietly that the console is gone, and goes on by itself", async () => {
    const mock = await start({ receivers: 30 });
    const { page, context } = await open(browser);
    await visit(page, mock.url);
    await page.locator('[data-live="live"]').waitFor();
    const height = await page.evaluate(() => document.documentElement.scrollHeight);
    mock.refuse(true);
    mock.dropStreams();
    const banner = page.getByTestId("connection");
    await banner.waitFor();
    expect(await banner.innerText()).toMatch(/Not connected to the console/);
    // Nothing moves for it.
    expect(Math.abs((await page.evaluate(() => document.documentElement.scrollHeight)) - height)).toBeLessThan(60);
    // The answer stays, as one of the past.
    await page.getByTestId("verdict").getByText("how it is now is not known").waitFor();
    const tries = () => mock.requests.filter((one: { path: string }) => one.path.startsWith("/api/v1/events")).length;
    const before = tries();
    await page.getByRole("button", { name: "Try now" }).click();
    await expect.poll(tries, { timeout: 10_000 }).toBeGreaterThan(before);
    // It is said for some seconds only.
    const connected = page.getByText("Connected to the console again.").waitFor({ timeout: 120_000 });
    mock.refuse(false);
    await page.locator('[data-live="live"]').waitFor();
    await banner.waitFor({ state: "detached" });
    await connected;
    await page.getByTestId("verdict").getByText("how it is now is not known").waitFor({ state: "detached" });
    // A cut that heals at once is not worth a word.
    const healed = tries();
    mock.dropStreams();
    await expect.poll(tries).toBeGreaterThan(healed);
    await page.locator('[data-live="live"]').waitFor();
    expect(await banner.count()).toBe(0);
    await context.close();
    await mock.close();
  });

  it("says of when it is what a silent source said last", async () => {
    const mock = await start({ receivers: 30, tickMs: 100_000 });
    const since = Date.now() - 125_000;
    const overview = mock.world.overview.bind(mock.world);
    const { page, faults, context } = await open(browser);
    await visit(page, mock.url);
    await page.locator('[data-live="live"]').waitFor();
    expect(await page.getByText("how it is now is not known").count()).toBe(0);
    mock.world.overview = () => {
      const now = overview();
      return { ...now, source: { ...now.source, state: "stale", seen_ms: since } };
    };
    mock.live({ changed: [], moves: [] });
    await page.getByTestId("verdict").getByText("how it is now is not known").waitFor();
    // Green would say that all is well now.
    const colour = await page.getByTestId("verdict").locator(".verdict").evaluate((element) => getComputedStyle(element).color);
    expect(colour).toBe(await page.locator("h3.soft").first().evaluate((element) => getComputedStyle(element).color));
    for (const [address, heading] of [["/receivers", "Receivers"], ["/channels", "Channels"], ["/relays", "Relays"]] as const) {
      await page.evaluate((to) => document.querySelector<HTMLAnchorElement>(`nav a[href="${to}"]`)!.click(), address);
      await page.getByRole("heading", { name: heading, exact: true, level: 1 }).waitFor();
      await page.locator("main").getByRole("status").getByText("how it is now is not known").waitFor();
    }
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    mock.world.overview = overview;
    mock.live({ changed: [], moves: [] });
    await page.getByText("how it is now is not known").waitFor({ state: "detached" });
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });

  it("pauses while the tab is hidden", async () => {
    const mock = await start({ receivers: 30 });
    const { page, context } = await open(browser);
    await visit(page, mock.url);
    await page.locator('[data-live="live"]').waitFor();
    expect(mock.streams()).toBe(1);
    const hide = (hidden: boolean) =>
      page.evaluate((value) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
        document.dispatchEvent(new Event("visibilitychange"));
      }, hidden);
    await hide(true);
    await page.locator('[data-live="paused"]').waitFor({ state: "attached" });
    await expect.poll(() => mock.streams()).toBe(0);
    const before = mock.requests.length;
    await page.waitForTimeout(3000);
    expect(mock.requests.length).toBe(before);
    await hide(false);
    await page.locator('[data-live="live"]').waitFor();
    expect(mock.streams()).toBe(1);
    const last = mock.requests.filter((one: { path: string }) => one.path.startsWith("/api/v1/events")).at(-1);
    expect(last?.headers["last-event-id"]).toBeDefined();
    await context.close();
    await mock.close();
  });
});

describe("the receivers' table", () => {
  it("draws a few of 100,000 rows and finds any of them", async () => {
    const mock = await start({ receivers: 100_000, tickMs: 1_000_000 });
    const { page, faults, context } = await open(browser);
    await visit(page, `${mock.url}/receivers`);
    await page.locator("[data-receiver]").first().waitFor();
    const table = page.getByRole("table", { name: "Receivers" });
    expect(await table.getAttribute("aria-rowcount")).toBe("100001");
    expect(await page.locator(".item").count()).toBeLessThan(60);
    await table.focus();
    await page.keyboard.press("End");
    await page.locator('[aria-rowindex="100001"][data-receiver]').waitFor();
    expect(await page.locator(".item").count()).toBeLessThan(60);
    const asked = mock.requests.filter((one: { path: string }) => /receivers\?/.test(one.path)).length;
    expect(asked).toBeLessThan(12);
    // Sort and filters are in the address.
    await page.getByRole("button", { name: "RTT" }).click();
    await page.waitForURL(/sort=rtt/);
    await page.getByRole("button", { name: "unicast" }).click();
    await page.waitForURL(/rung=unicast/);
    await page.locator('[data-rung="unicast"][data-receiver]').first().waitFor();
    expect(await page.locator('[data-receiver]:not([data-rung="unicast"])').count()).toBe(0);
    await page.reload();
    await page.locator('[data-rung="unicast"][data-receiver]').first().waitFor();
    expect(await page.getByRole("link", { name: "CSV" }).getAttribute("href")).toMatch(/rung=unicast.*sort=rtt.*format=csv/);
    await page.getByRole("searchbox").fill("no such name");
    await page.getByText("No receiver fits these filters").waitFor();
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });
});

describe("the keyboard", () => {
  it("reaches everything and opens a receiver", async () => {
    const mock = await start({ receivers: 200, tickMs: 100_000 });
    const { page, context } = await open(browser);
    await visit(page, mock.url);
    await page.keyboard.press("Tab");
    expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Skip to the content");
    await page.keyboard.press("Enter");
    expect(await page.evaluate(() => document.activeElement?.id)).toBe("main");
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    // The second key has to come within 1.2 s of the first: a machine that stops for longer gets more tries.
    for (let tried = 0; tried < 5 && !/\/receivers$/.test(page.url()); tried += 1) {
      await page.keyboard.press("g");
      await page.keyboard.press("r");
      await page.waitForURL(/\/receivers$/, { timeout: 5000 }).catch(() => undefined);
    }
    expect(page.url()).toMatch(/\/receivers$/);
    await page.locator("[data-receiver]").first().waitFor();
    await page.keyboard.press("/");
    expect(await page.evaluate(() => document.activeElement?.id)).toBe("search");
    await page.keyboard.type("g o");
    await page.waitForTimeout(500);
    expect(page.url()).toContain("/receivers");
    await page.getByRole("searchbox").fill("");
    await page.waitForURL(/\/receivers$/);
    await page.locator("[data-receiver]").first().waitFor();
    await page.getByRole("searchbox").blur();
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.locator('.active[aria-rowindex="3"]').waitFor();
    await page.keyboard.press("k");
    const id = await page.locator(".active").getAttribute("data-receiver");
    await page.keyboard.press("Enter");
    await page.waitForURL(new RegExp(`/receivers/${id}`));
    await page.getByRole("button", { name: "Rename" }).waitFor();
    await expect.poll(() => page.evaluate(() => document.activeElement?.tagName)).toBe("H1");
    // Whatever has the focus shows it.
    for (let at = 0; at < 14; at += 1) {
      await page.keyboard.press("Tab");
      const ring = await page.evaluate(() => {
        const style = getComputedStyle(document.activeElement as Element);
        return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
      });
      expect(ring).toBe(true);
    }
    await context.close();
    await mock.close();
  });
});

describe("the heading that has the focus", () => {
  it.each(["receivers", "updates"])("keeps it while what belongs to it comes, and when it is gone: %s", async (kind) => {
    const mock = await start({ receivers: 3, tickMs: 100_000 });
    const { page, faults, context } = await open(browser);
    const update = mock.world.updates[0]!;
    const [list, own, at] = kind === "receivers"
      ? ["/receivers", mock.world.receivers[0]!.id, `/receivers/${mock.world.receivers[0]!.id}`]
      : [`/updates?channel=${update.channel}`, update.title!, `/updates/${update.channel}/${update.seq}`];
    await visit(page, mock.url + list);
    let release = () => {};
    const held = new Promise<void>((resolve) => (release = resolve));
    await page.route(`**/api/v1${at}`, async (route) => {
      await held;
      await route.continue();
    });
    const link = page.locator(`main a[href="${at}"]`).first();
    await link.waitFor();
    await link.focus();
    await page.keyboard.press("Enter");
    await page.locator("main").getByText("Loading…").waitFor();
    const active = () => page.evaluate(() => `${document.activeElement?.tagName} ${document.activeElement?.textContent}`);
    await expect.poll(active).toBe(kind === "receivers" ? "H1 Receiver" : "H1 Update");
    release();
    await page.locator("main section").first().waitFor();
    expect(await active()).toBe(`H1 ${kind === "receivers" ? mock.world.receivers[0]!.label ?? mock.world.receivers[0]!.name : own}`);
    expect(await page.locator("h1").count()).toBe(1);
    if (kind === "receivers") {
      await page.locator('[data-live="live"]').waitFor();
      await fetch(`${mock.url}/api/v1/receivers/${own}?forget=true`, { method: "DELETE", headers: { "x-csrf-token": "standing" } });
      await expect.poll(active).toBe("H1 There is no such receiver");
    }
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });
});

describe("actions", () => {
  it("ask first, and say how they ended", async () => {
    const mock = await start({ receivers: 3, tickMs: 100_000 });
    const victim = mock.world.receivers[0]!;
    const { page, faults, context } = await open(browser);
    await visit(page, `${mock.url}/receivers/${victim.id}`);
    await page.getByRole("button", { name: "Rename" }).click();
    await page.getByLabel("Label").fill("Front desk");
    await page.getByRole("dialog").getByRole("button", { name: "Rename" }).click();
    await page.getByRole("heading", { name: "Front desk" }).waitFor();
    await page.getByRole("button", { name: "Move to unicast" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Move to unicast" }).click();
    await page.getByText("held on unicast").waitFor();
    await page.getByRole("button", { name: "Tags" }).click();
    await page.getByRole("textbox", { name: "Tags" }).fill("x".repeat(80));
    await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
    await page.getByRole("alert").getByText("A tag is too long").waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Remove", exact: true }).click();
    const remove = page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true });
    expect(await remove.isDisabled()).toBe(true);
    await page.getByLabel("Type Front desk").fill("Front desk");
    await remove.click();
    await page.getByText("Remove: done.").waitFor();
    await page.waitForURL(/\/receivers$/);
    await page.getByText("2 receivers", { exact: true }).waitFor();
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });

  it("adds a channel whose packets are authenticated, without erasure coding", async () => {
    const mock = await start({ receivers: 10, tickMs: 100_000 });
    const { page, faults, context } = await open(browser);
    await visit(page, `${mock.url}/channels`);
    await page.getByRole("button", { name: "Add a channel" }).click();
    await page.getByRole("textbox", { name: "Name" }).fill("signed");
    await page.getByRole("combobox", { name: "Packet authentication" }).selectOption("tags");
    await page.getByRole("combobox", { name: "Erasure coding" }).selectOption("off");
    await page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
    await page.getByText("Channel signed was added.").waitFor();
    await page.goto(`${mock.url}/channels/signed`);
    await page.getByText("Packets have a tag for each receiver.").waitFor();
    const coding = page.getByRole("definition").filter({ has: page.getByText("off", { exact: true }) });
    await coding.waitFor();
    await page.goto(`${mock.url}/channels/lore`);
    await page.getByText("340 repair packets sent, 12,030 repairs saved").waitFor();
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });

  it("makes the line to run, and refuses addresses inside", async () => {
    const mock = await start({ receivers: 0, tickMs: 100_000 });
    const { page, faults, context } = await open(browser);
    await visit(page, mock.url);
    await page.getByText("No receivers yet").waitFor();
    await page.getByRole("link", { name: "Get the line to run" }).click();
    await page.getByText("PUBLIC_ADDRESS is not set").first().waitFor();
    await page.getByRole("button", { name: "Make the line to run" }).click();
    expect(await page.getByRole("figure").filter({ hasText: "Docker" }).locator("pre").innerText()).toMatch(/^docker run .*flexfeed:\/\//);
    await page.goto(`${mock.url}/feeds`);
    await page.getByRole("button", { name: "Add a feed" }).first().click();
    await page.getByRole("textbox", { name: "Address", exact: true }).fill("http://169.254.169.254/latest/meta-data");
    await page.getByRole("button", { name: "Try it" }).click();
    await page.getByText("It leads to a private network").waitFor();
    await page.getByRole("textbox", { name: "Address", exact: true }).fill("https://example.org/feed");
    await page.getByRole("button", { name: "Try it" }).click();
    await page.getByText("A feed that was tried").waitFor();
    expect(await page.locator("dialog a[href^='javascript']").count()).toBe(0);
    await page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
    await page.getByText("The feed was added").waitFor();
    await page.locator("[data-feed]").first().waitFor();
    expect(faults).toEqual([]);
    await context.close();
    await mock.close();
  });
});
