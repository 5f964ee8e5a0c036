import { createRawSnippet, flushSync, mount, unmount } from "svelte";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { live } from "../lib/live/live.svelte";
import { load } from "../lib/query.svelte";
import Forgeries from "../parts/Forgeries.svelte";
import Moment from "../parts/Moment.svelte";
import Warnings from "../parts/Warnings.svelte";

describe("a moment", () => {
  it("has its date when the day is over, without being drawn again", () => {
    const evening = new Date(2026, 10, 20, 23, 58, 1).getTime();
    live.now = evening + 30_000;
    const holder = document.createElement("p");
    const made = mount(Moment, { target: holder, props: { at: evening } });
    flushSync();
    expect(holder.textContent).toBe("23:58:01");
    live.now = evening + 3 * 60_000;
    flushSync();
    expect(holder.textContent).toBe("20 Nov 23:58");
    void unmount(made);
  });
});

describe("warnings of the source", () => {
  it("show an overload as such", () => {
    const holder = document.createElement("div");
    const overloaded = { code: "overloaded", text: "the source cannot keep up" };
    const made = mount(Warnings, { target: holder, props: { warnings: [overloaded, { code: "source", text: "set it" }] } });
    flushSync();
    const pills = [...holder.querySelectorAll(".pill")].map((pill) => [pill.className, pill.textContent]);
    expect(pills).toEqual([["pill bad", "Overloaded"], ["pill warn", "Warning"]]);
    expect(holder.querySelector("[data-testid=overloaded]")?.textContent).toContain("cannot keep up");
    void unmount(made);
  });
});

describe("reports of forged packets", () => {
  it("name the channel, the first and the last of them, and who", () => {
    live.now = new Date(2026, 10, 20, 12, 0, 0).getTime();
    const holder = document.createElement("div");
    const first = live.now - 60_000;
    const who = createRawSnippet((name: () => string) => ({ render: () => `<b>3 receivers of ${name()} report</b>` }));
    const reports = [
      { channel: "lore", reports: { first_ms: first, last_ms: first + 9000, reports: 4 } },
      { channel: "news", reports: { first_ms: first, last_ms: first, reports: 1 } },
    ];
    const made = mount(Forgeries, { target: holder, props: { reports, who } });
    flushSync();
    const [lore, news] = [...holder.querySelectorAll("[data-testid=forgeries]")].map((one) => one.textContent);
    expect(lore).toContain("3 receivers of lore report forged packets on the flow of lore, since 11:59:00, last 11:59:09 (4 reports).");
    expect(news).toContain("on the flow of news, since 11:59:00. Holders");
    void unmount(made);
  });
});

describe("what is loaded again by itself", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  function loaded() {
    let ms = $state<number | null>(60_000);
    let reason = $state(0);
    let asked = 0;
    const stop = $effect.root(() => {
      load(
        () => "x",
        () => Promise.resolve((asked += 1)),
        () => (reason >= 0 ? ms : null),
      );
    });
    flushSync();
    return { stop, asked: () => asked, wait: (value: number | null) => flushSync(() => (ms = value)), because: (value: number) => flushSync(() => (reason = value)) };
  }

  it("is loaded at once where the page was hidden for longer than that", async () => {
    const { stop, asked, wait } = loaded();
    expect(asked()).toBe(1);
    wait(null);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(asked()).toBe(1);
    wait(60_000);
    await vi.advanceTimersByTimeAsync(0);
    flushSync();
    expect(asked()).toBe(2);
    // A short look elsewhere is no reason.
    wait(null);
    await vi.advanceTimersByTimeAsync(5000);
    wait(60_000);
    flushSync();
    expect(asked()).toBe(2);
    stop();
  });

  it("does not restart its wait whenever something else changes", async () => {
    const { stop, asked, because } = loaded();
    await vi.advanceTimersByTimeAsync(40_000);
    because(1);
    await vi.advanceTimersByTimeAsync(21_000);
    flushSync();
    expect(asked()).toBe(2);
    stop();
  });
});
