// Changes while a page is watched, and while it is not: sessions, streams, lists, and other users' actions.
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { launch, type Mock, open, start, visit } from "./browser";

let browser: Browser;
let mock: Mock;
const contexts: { close(): Promise<void> }[] = [];
beforeAll(async () => {
  browser = await launch();
});
afterEach(async () => {
  for (const context of contexts.splice(0)) await context.close();
  await mock.close();
});
afterAll(async () => {
  await browser?.close();
});

async function look(address: string, options: Record<string, unknown> = {}): Promise<{ page: Page; faults: string[] }> {
  mock = await start({ receivers: 3, tickMs: 100_000, ...options });
  const { page, faults, context } = await open(browser);
  contexts.push(context);
  await visit(page, mock.url + address);
  return { page, faults };
}

const isLive = (page: Page) => page.locator('[data-live="live"]').waitFor();
const asked = (what: RegExp) => mock.requests.filter((one: { path: string }) => what.test(one.path)).length;

async function hide(page: Page, hidden: boolean): Promise<void> {
  await page.evaluate((value) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
}

async function signIn(page: Page, name = "ada", password = "correct horse"): Promise<void> {
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Password", { exact: true }).fill(password);
  await page.getByRole("button", { name: "Sign in" }).click();
}

describe("a stream", () => {
  it("is live again after a break in which nothing happened", async () => {
    const { page } = await look("/");
    await isLive(page);
    await hide(page, true);
    await page.locator('[data-live="paused"]').waitFor({ state: "attached" });
    await hide(page, false);
    await isLive(page);
    expect(await page.getByText("as of").count()).toBe(0);
    // A cut of some seconds, too: what was said of it is taken back.
    mock.refuse(true);
    mock.dropStreams();
    await page.getByTestId("connection").waitFor();
    mock.refuse(false);
    await isLive(page);
    await page.getByTestId("connection").waitFor({ state: "detached" });
    await page.getByText("how it is now is not known").waitFor({ state: "detached" });
    const snapshots = mock.requests.filter((one: { path: string; headers: Record<string, unknown> }) => one.path.startsWith("/api/v1/events") && !one.headers["last-event-id"]);
    expect(snapshots.length).toBe(1);
  });

  it("goes on without a list that the console does not know", async () => {
    const { page } = await look("/receivers?rung=foo");
    await page.getByRole("alert").getByText("The request cannot be understood").waitFor();
    await isLive(page);
    await page.waitForTimeout(2600);
    expect(await page.getByTestId("connection").count()).toBe(0);
    expect(await page.getByText("how it is now is not known").count()).toBe(0);
    expect(asked(/events/)).toBeLessThan(4);
    // Nor is what was refused asked for on and on.
    const lists = mock.requests.filter((one: { path: string }) => /v1\/receivers\?/.test(one.path));
    // The table asks for its order again every 15 s, which a slow machine may come to see here.
    expect(lists.filter((one: { at: number }) => one.at - lists[0]!.at < 10_000).length).toBe(1);
    await page.getByRole("button", { name: "Clear filters" }).click();
    await page.locator("[data-receiver]").first().waitFor();
  });

  it("leaves no hole among the moves after a long gap", async () => {
    const { page } = await look("/", { receivers: 60 });
    await isLive(page);
    const [old, ...others] = mock.world.receivers.filter((one: { rung: string }) => one.rung === "multicast");
    mock.live({ changed: [old], moves: [mock.world.move(old!, "unicast", "flow-invalid")] });
    const list = page.getByTestId("moves");
    await list.locator('[data-cause="flow-invalid"]').waitFor();
    // The console is another one, and has more news than its overview holds.
    mock.refuse(true);
    mock.restart();
    await page.locator('[data-live="waiting"]').waitFor();
    for (const one of others.slice(0, 25)) mock.world.move(one, "unicast", "network-changed");
    mock.refuse(false);
    await list.locator('[data-cause="network-changed"]').first().waitFor();
    expect(await list.locator('[data-cause="flow-invalid"]').count()).toBe(0);
  });
});

describe("forged packets", () => {
  it("are seen: on which flow, since when, and which receivers report it", async () => {
    const { page, faults } = await look("/relays", { receivers: 60 });
    const [moved, ...others] = mock.world.receivers.filter((one: { rung: string }) => one.rung === "multicast");
    mock.world.forge(moved!, "lore", mock.world.now() - 60_000);
    mock.world.forge(moved!, "lore");
    mock.world.forge(others[0]!, "lore");
    await visit(page, mock.url + "/");
    const notice = page.getByTestId("forgeries");
    await notice.getByText("2 receivers report forged packets on the flow of lore, since").waitFor();
    expect(await notice.textContent()).toContain("(3 reports)");
    await notice.getByRole("link", { name: "2 receivers" }).click();
    const rows = page.locator("[data-receiver]");
    await expect.poll(() => rows.count()).toBe(2);
    expect(await rows.getByText("forged packets").count()).toBe(2);
    await page.locator(`[data-receiver="${moved!.id}"] a`).first().click();
    await page.getByTestId("forgeries").getByText("It reports forged packets on the flow of lore, since").waitFor();
    expect(await page.getByTestId("forgeries").textContent()).toContain("(2 reports)");
    await page.getByRole("button", { name: "somebody forges packets of the flow" }).first().waitFor();
    await visit(page, `${mock.url}/receivers/${others[1]!.id}`);
    expect(await page.getByTestId("forgeries").count()).toBe(0);
    expect(faults).toEqual([]);
  });

  it("are no reason of a receiver that does not verify signatures", async () => {
    const { page } = await look("/relays");
    const old = mock.world.receivers[0]!;
    mock.world.move(old, "unicast", "unverified");
    await visit(page, `${mock.url}/receivers/${old.id}`);
    await page.getByLabel("Now").getByText("does not verify signatures").waitFor();
    expect(await page.getByTestId("forgeries").count()).toBe(0);
  });
});

describe("a session", () => {
  it("that ended on a page with a list of its own leaves nothing behind, and the next one is live", async () => {
    const { page } = await look("/receivers?rung=unicast", { signedIn: false });
    await signIn(page);
    await page.getByRole("heading", { name: "Receivers" }).waitFor();
    await isLive(page);
    // The list comes by the stream only when its rows are there; after that nothing is asked for.
    await expect.poll(() => asked(/events\?.*rung=unicast/)).toBeGreaterThan(0);
    await expect.poll(() => Date.now() - mock.requests.at(-1)!.at).toBeGreaterThan(1500);
    const from = mock.requests.length;
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("heading", { name: "Sign in to the console" }).waitFor();
    await page.waitForTimeout(1000);
    // Signed out: nothing of the old page is drawn again or sends requests.
    expect(mock.requests.slice(from).map((one: { method: string; path: string }) => `${one.method} ${one.path}`).filter((one: string) => one.includes("/api/"))).toEqual(["DELETE /api/v1/session"]);
    await signIn(page);
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await isLive(page);
  });

  it("that cannot be ended is not said to be", async () => {
    const { page } = await look("/receivers", { signedIn: false });
    await signIn(page);
    await page.getByRole("heading", { name: "Receivers" }).waitFor();
    await page.route("**/api/v1/session", (route) => route.fulfill({ status: 503, contentType: "text/plain", body: "" }));
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("You are still signed in.").waitFor();
    expect(await page.getByRole("heading", { name: "Receivers" }).count()).toBe(1);
    await page.unroute("**/api/v1/session");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("heading", { name: "Sign in to the console" }).waitFor();
  });

  it("of another tab takes the place of the old one, also of another person", async () => {
    const { page } = await look("/feeds", { signedIn: false });
    await signIn(page);
    await page.getByRole("heading", { name: "Feeds" }).waitFor();
    const other = await page.context().newPage();
    await visit(other, mock.url);
    const again = async (name: string, password: string) => {
      await other.getByRole("button", { name: "Sign out" }).click();
      await signIn(other, name, password);
      await other.getByRole("heading", { name: "Overview" }).waitFor();
    };
    await again("ada", "correct horse");
    const feed = page.locator('[data-feed="f1"]');
    await feed.getByRole("button", { name: "Pause" }).click();
    await page.locator('[data-feed="f1"][data-state="paused"]').waitFor();
    // Nothing is done in the name of a user that the page does not show.
    mock.world.users[1]!.role = "operator";
    await again("vera", "battery staple");
    await feed.getByRole("button", { name: "Resume" }).click();
    await page.getByText("vera is signed in now").waitFor();
    await expect.poll(() => page.locator('[data-feed="f1"][data-state="paused"]').count()).toBe(1);
    await page.locator(".who").getByText("vera").waitFor();
    await feed.getByRole("button", { name: "Resume" }).click();
    await page.locator('[data-feed="f1"][data-state="pending"]').waitFor();
    // A user who returns to a tab sees it without doing anything.
    await isLive(page);
    await hide(page, true);
    await page.locator('[data-live="paused"]').waitFor({ state: "attached" });
    await again("ada", "correct horse");
    await hide(page, false);
    await page.locator(".who").getByText("ada").waitFor();
  });

  it("is asked for until the console can say", async () => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    const { page, context } = await open(browser);
    contexts.push(context);
    let isBack = false;
    let asks = 0;
    await page.route("**/api/v1/session", (route) => {
      asks += 1;
      return isBack ? route.continue() : route.fulfill({ status: 503, contentType: "text/plain", body: "" });
    });
    await page.goto(mock.url);
    await page.getByRole("alert").getByText("Not available at the moment").waitFor();
    await expect.poll(() => asks).toBeGreaterThan(2);
    isBack = true;
    await page.getByRole("heading", { name: "Overview" }).waitFor();
  });
});

describe("rows of the receivers", () => {
  it("that left the list say so, and are gone when it is renewed", async () => {
    const { page } = await look("/receivers?rung=unicast", { receivers: 300 });
    await isLive(page);
    await page.waitForTimeout(800);
    const rows = page.locator("[data-receiver]");
    await rows.first().waitFor();
    const id = (await rows.nth(1).getAttribute("data-receiver"))!;
    const count = await rows.count();
    await page.getByText(`${count} of 300 receivers`).waitFor();
    await rows.nth(1).hover();
    const victim = mock.world.byId.get(id)!;
    mock.live({ changed: [victim], moves: [mock.world.move(victim, "multicast", "joined")] });
    const row = page.locator(`[data-receiver="${id}"]`);
    await page.locator(`[data-receiver="${id}"][data-left]`).waitFor();
    await row.getByText("left this list").waitFor();
    await page.getByText(`${count - 1} of 300 receivers`).waitFor();
    // Its age does not go on as if it were still there.
    const since = await row.locator(".since").innerText();
    await page.waitForTimeout(2200);
    expect(await row.locator(".since").innerText()).toBe(since);
    expect(await rows.count()).toBe(count);
    // It is back, and as live as before.
    mock.live({ changed: [victim], moves: [mock.world.move(victim, "unicast", "heartbeat-lost")] });
    await page.locator(`[data-receiver="${id}"]:not([data-left])`).waitFor();
    mock.live({ changed: [victim], moves: [mock.world.move(victim, "multicast", "joined")] });
    await page.getByText("1 row is not in this part of the list any more.").waitFor();
    await page.getByRole("button", { name: "Renew it now" }).click();
    await row.waitFor({ state: "detached" });
    expect(await page.locator("[data-left]").count()).toBe(0);
  });

  it("stay where they are while one of their links has the focus, and keys say which row they mark", async () => {
    const { page } = await look("/receivers?sort=rtt", { receivers: 40 });
    await isLive(page);
    await page.waitForTimeout(800);
    const first = page.locator('[aria-rowindex="2"][data-receiver]');
    const id = (await first.getAttribute("data-receiver"))!;
    await page.mouse.move(5, 5);
    await first.getByRole("link").first().focus();
    const last = mock.world.byId.get(id)!;
    last.rtt_ms = 900;
    mock.live({ changed: [last], moves: [] });
    await first.getByText("900 ms").waitFor();
    await page.waitForTimeout(16_500);
    expect(await first.getAttribute("data-receiver")).toBe(id);
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    await page.locator(`[aria-rowindex="2"]:not([data-receiver="${id}"])`).waitFor();
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    const name = (await page.locator('[aria-rowindex="3"] .name > a').innerText()).trim();
    await page.getByTestId("marked").getByText(`Row 2: ${name}, `).waitFor({ state: "attached" });
    await expect.poll(() => page.locator('[aria-current="true"][aria-rowindex]').getAttribute("aria-rowindex")).toBe("3");
  });
});

describe("how far an update has come", () => {
  it.each(["/channels/lore", "/updates?channel=lore", "/updates/lore/NEWEST"])("goes on being asked for: %s", async (address) => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    let newest: { channel: string; seq: number };
    do newest = mock.world.publish(Date.now());
    while (newest.channel !== "lore");
    const update = mock.world.updates[0]!;
    update.progress = null as never;
    const { page, faults, context } = await open(browser);
    contexts.push(context);
    await visit(page, mock.url + address.replace("NEWEST", String(newest.seq)));
    await page.getByText("not known yet").first().waitFor();
    update.progress = { expected: 3, delivered: 3, half_ms: 24, p99_ms: 118, all_ms: 240 };
    // Another one that comes meanwhile moves nothing: it is shown when it is asked for.
    if (address.startsWith("/updates?")) mock.world.updates.unshift({ ...update, seq: newest.seq + 1, title: "Came meanwhile" });
    await page.getByText("3 of 3").first().waitFor();
    await page.getByText("240 ms").first().waitFor();
    await page.getByText("not known yet").first().waitFor({ state: "detached" });
    if (address.startsWith("/updates?")) expect(await page.getByText("Came meanwhile").count()).toBe(0);
    expect(faults).toEqual([]);
  });
});

describe("a receiver's page", () => {
  it("says what removing is, and lets it be forgotten later", async () => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    const victim = mock.world.receivers[0]!;
    const { page, context } = await open(browser);
    contexts.push(context);
    await visit(page, `${mock.url}/receivers/${victim.id}`);
    await page.getByRole("button", { name: "Remove", exact: true }).click();
    await page.getByText("It can come back only after it was forgotten").waitFor();
    await page.getByLabel(/^Type /).fill(` ${victim.label ?? victim.name} `);
    await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
    await page.waitForURL(/\/receivers$/);
    await visit(page, `${mock.url}/receivers?revoked=true`);
    await page.locator(`[data-receiver="${victim.id}"]`).getByRole("link").first().click();
    await page.getByText("removed", { exact: true }).waitFor();
    expect(await page.getByRole("button", { name: "Rename" }).count()).toBe(0);
    await page.getByRole("button", { name: "Forget" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Forget" }).click();
    await page.getByText("Forget: done.").waitFor();
    expect(asked(new RegExp(`receivers/${victim.id}\\?forget=true`))).toBe(1);
    expect(mock.world.removed.length).toBe(0);
  });

  it("follows each of its channels, its sessions, and its end", async () => {
    mock = await start({ receivers: 300, tickMs: 100_000 });
    const one = mock.world.receivers.find((own: { channels: unknown[]; rung: string }) => own.channels.length > 1 && own.rung === "multicast")!;
    // On lore it stands on unicast and stays there; its summary is that of the worst.
    mock.world.move(one, "multicast", "joined");
    Object.assign(one.channels[0]!, { rung: "unicast", cause: "too-slow", since_ms: Date.now() - 60_000 });
    mock.world.settle(one);
    const { page, context } = await open(browser);
    contexts.push(context);
    await visit(page, `${mock.url}/receivers/${one.id}`);
    await isLive(page);
    await page.waitForTimeout(800);
    const moves = page.locator("section", { has: page.locator("#moves") });
    expect(await moves.locator('[data-cause="relay-lost"]').count()).toBe(0);
    Object.assign(one.channels[1]!, { rung: "unicast", cause: "relay-lost", since_ms: Date.now() });
    mock.world.moves.unshift({ id: (mock.world.nextId += 1), at_ms: Date.now(), receiver: one.id, name: one.name, channel: "news", from: "multicast", to: "unicast", cause: "relay-lost" });
    mock.live({ changed: [one], moves: [] });
    await moves.locator('[data-cause="relay-lost"]').first().waitFor();
    // It was let in again.
    const sessions = page.locator("section", { has: page.locator("#sessions") });
    await expect.poll(() => sessions.getByText("still open").count()).toBe(1);
    const list = mock.world.sessionsOf(one.id);
    Object.assign(list[0]!, { ended_ms: Date.now() - 1000, end_cause: "idle-timeout-of-now" });
    list.unshift({ ...list[0]!, id: "9999", began_ms: Date.now(), ended_ms: null, end_cause: null });
    one.seen_ms = Date.now();
    mock.live({ changed: [one], moves: [] });
    await sessions.getByText("idle-timeout-of-now").waitFor();
    await expect.poll(() => sessions.getByText("still open").count()).toBe(1);
    // Another operator removes and forgets it.
    await fetch(`${mock.url}/api/v1/receivers/${one.id}?forget=true`, { method: "DELETE", headers: { "x-csrf-token": "standing" } });
    await page.getByRole("heading", { name: "There is no such receiver" }).waitFor();
  });

  it("has its rungs over time as a table, too", async () => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    const one = mock.world.receivers.find((own: { rung: string }) => own.rung === "multicast")!;
    mock.world.moves = [];
    const fell = mock.world.move(one, "unicast", "heartbeat-lost");
    const back = mock.world.move(one, "multicast", "joined");
    fell.at_ms -= 1_200_000;
    back.at_ms -= 600_000;
    const { page, context } = await open(browser);
    contexts.push(context);
    await visit(page, `${mock.url}/receivers/${one.id}`);
    const panel = page.locator("section", { has: page.locator("#timeline") });
    const drawn = 3;
    await expect.poll(() => panel.locator("svg").first().locator('rect[class^="fill-"]').count()).toBe(drawn);
    await panel.getByRole("button", { name: "Table" }).click();
    const rows = panel.getByRole("group", { name: `Rungs of ${one.channels[0]!.channel} over time` }).locator("tbody tr");
    await expect.poll(() => rows.count()).toBe(drawn);
    await expect.poll(async () => (await rows.first().innerText()).replace(/\s+/g, " ")).toMatch(/now .* multicast packets arrive that way/);
  });

  it("draws no rung while its moves are not known", async () => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    const { page, context } = await open(browser);
    contexts.push(context);
    await page.route("**/receivers/*/moves*", (route) => route.fulfill({ status: 503, contentType: "text/plain", body: "" }));
    await page.goto(`${mock.url}/receivers/${mock.world.receivers[0]!.id}`);
    await page.getByText("Its moves could not be loaded.").waitFor();
    expect(await page.locator("#timeline").locator("xpath=ancestor::section").locator('rect[class^="fill-"]').count()).toBe(0);
  });
});

describe("dialogs", () => {
  it("of feeds show what belongs to them alone, and what went wrong", async () => {
    const { page } = await look("/feeds");
    const [first, second] = mock.world.feeds;
    let release = () => {};
    const held = new Promise<void>((resolve) => (release = resolve));
    await page.route(`**/feeds/${first!.id}/history`, async (route) => {
      await held;
      await route.fulfill({ json: { events: [{ at_ms: Date.now(), state: "error", detail: "of the first one", excerpt: null }], hours: [] } });
    });
    const history = (id: string) => page.locator(`[data-feed="${id}"]`).getByRole("button", { name: "History" }).click();
    await history(first!.id);
    await page.getByRole("dialog").getByText("Loading…").waitFor();
    await page.keyboard.press("Escape");
    await history(second!.id);
    await page.getByRole("dialog").getByText("it could be read again").waitFor();
    const late = page.waitForResponse((one) => one.url().includes(`${first!.id}/history`));
    release();
    await late;
    await page.waitForTimeout(200);
    expect(await page.getByText("of the first one").count()).toBe(0);
    await page.keyboard.press("Escape");
    let fails = true;
    await page.route(`**/feeds/${second!.id}/history`, (route) => (fails ? route.fulfill({ status: 503, contentType: "text/plain", body: "" }) : route.continue()));
    await history(second!.id);
    await page.getByRole("dialog").getByRole("alert").getByText("Not available at the moment").waitFor();
    fails = false;
    await page.getByRole("dialog").getByRole("button", { name: "Try again" }).click();
    await page.getByRole("dialog").getByText("it could be read again").waitFor();
  });

  it("that try a feed say nothing of another address", async () => {
    const { page } = await look("/feeds");
    let release = () => {};
    const held = new Promise<void>((resolve) => (release = resolve));
    await page.route("**/feeds/test", async (route) => {
      await held;
      await route.continue().catch(() => undefined);
    });
    await page.getByRole("button", { name: "Add a feed" }).first().click();
    const address = page.getByRole("textbox", { name: "Address", exact: true });
    await address.fill("https://example.org/one");
    await page.getByRole("button", { name: "Try it" }).click();
    await page.getByRole("button", { name: "Trying…" }).waitFor();
    await address.fill("https://example.org/other");
    await page.getByRole("button", { name: "Try it" }).waitFor();
    release();
    await page.waitForTimeout(600);
    expect(await page.getByText("A feed that was tried").count()).toBe(0);
  });

  it("that are closed too early still say what failed", async () => {
    mock = await start({ receivers: 3, tickMs: 100_000 });
    const { page, context } = await open(browser);
    contexts.push(context);
    await visit(page, `${mock.url}/receivers/${mock.world.receivers[0]!.id}`);
    let release = () => {};
    const held = new Promise<void>((resolve) => (release = resolve));
    await page.route("**/api/v1/receivers/*", async (route) => {
      if (route.request().method() !== "PATCH") return route.continue();
      await held;
      return route.fulfill({ status: 503, contentType: "text/plain", body: "" });
    });
    await page.getByRole("button", { name: "Rename" }).click();
    await page.getByLabel("Label").fill("Front desk");
    await page.getByRole("dialog").getByRole("button", { name: "Rename" }).click();
    await page.getByRole("button", { name: "Working…" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    release();
    await page.getByText("Rename: Not available at the moment.").waitFor();
  });
});

describe("what is not of now", () => {
  it.each(["/", "/receivers", "/channels"])("is said without moving anything: %s", async (address) => {
    const { page } = await look(address, { receivers: 60 });
    await isLive(page);
    await page.waitForTimeout(1500);
    const places = () => page.locator("h1, main section, main [role=table]").evaluateAll((all) => all.map((one) => Math.round(one.getBoundingClientRect().top)));
    const before = await places();
    const overview = mock.world.overview.bind(mock.world);
    mock.world.overview = () => {
      const now = overview();
      return { ...now, source: { ...now.source, state: "stale", seen_ms: Date.now() - 125_000 } };
    };
    mock.live({ changed: [], moves: [] });
    const said = page.locator("main").getByRole("status").getByText(address === "/" ? "No source has written since" : "how it is now is not known");
    await said.waitFor();
    expect(await said.evaluate((one) => one.getBoundingClientRect().bottom <= innerHeight)).toBe(true);
    expect(await places()).toEqual(before);
  });
});

describe("numbers lead to what they count", () => {
  it("with the channel that is chosen", async () => {
    const { page } = await look("/?channel=news", { receivers: 60 });
    const links = await page.locator("main dd a").evaluateAll((all) => all.map((one) => one.getAttribute("href") ?? ""));
    for (const link of links.filter((one) => /^\/(receivers|updates)/.test(one))) expect(link).toContain("channel=news");
    expect(links.filter((one) => /^\/(receivers|updates)/.test(one)).length).toBe(4);
    // Several receivers that moved for the same reason, on the channel on which they did.
    const some = mock.world.receivers.filter((one: { rung: string }) => one.rung === "multicast").slice(0, 5);
    mock.live({ changed: some, moves: some.map((one) => mock.world.move(one, "unicast", "too-slow")).reverse() });
    await page.goto(mock.url);
    await expect.poll(() => page.getByTestId("moves").getByRole("link", { name: /receivers$/ }).first().getAttribute("href")).toBe("/receivers?rung=unicast&cause=too-slow&channel=lore");
  });

  it("and updates are counted by their own channel's numbers", async () => {
    const { page } = await look("/updates?channel=news");
    await isLive(page);
    await page.getByRole("button", { name: "Newest" }).waitFor();
    await page.evaluate(() => document.querySelector<HTMLAnchorElement>('nav a[href="/updates"]')!.click());
    await page.waitForURL(/\/updates$/);
    await page.waitForTimeout(300);
    expect(await page.getByRole("button", { name: /newer: show/ }).count()).toBe(0);
  });

  it("and keys that another user changed are shown", async () => {
    const { page } = await look("/channels/lore");
    await page.getByText("no. 41").waitFor();
    mock.world.keySequence.lore = 42;
    await page.getByText("no. 42").waitFor({ timeout: 90_000 });
  });
});
