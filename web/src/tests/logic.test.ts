import { describe, expect, it } from "vitest";
import { asProblem, Problem, problemOfStatus, readProblem } from "../lib/api/problem";
import type { Move } from "../lib/api/types";
import { columns, rangeOf, stacked, tickWords } from "../lib/chart";
import { match, queryText } from "../lib/router.svelte";
import { isTyping, KeyReader } from "../lib/shortcuts";
import { askAgainMs, isUnderWay } from "../lib/progress";
import { skew } from "../lib/skew";
import { stretches } from "../lib/timeline";

describe("addresses", () => {
  const routes = [
    ["/", "home"],
    ["/receivers", "list"],
    ["/receivers/:id", "one"],
  ] as const;
  it("find their page", () => {
    expect(match(routes, "/")?.value).toBe("home");
    expect(match(routes, "/receivers/")?.value).toBe("list");
    expect(match(routes, "/receivers/a%2Fb")).toEqual({ value: "one", params: { id: "a/b" } });
    expect(match(routes, "/receivers/%E0%A4%A")?.params.id).toBe("%E0%A4%A");
    expect(match(routes, "/receivers/a/b")).toBeNull();
  });
  it("carry only what is set", () => {
    expect(queryText({ a: "1", b: null, c: "", d: false, e: true, f: 0, g: "x y&z" })).toBe("a=1&e=true&f=0&g=x+y%26z");
  });
});

describe("problems", () => {
  it("are shown in the console's own words", async () => {
    const body = JSON.stringify({ type: "urn:flexfeed:problem:invalid", title: "A value cannot be used", detail: "one of the values is empty", status: 422, retry_after_s: 7 });
    const problem = await readProblem(new Response(body, { status: 422, headers: { "content-type": "application/problem+json" } }));
    expect(problem).toMatchObject({ status: 422, title: "A value cannot be used", detail: "One of the values is empty.", retryAfterMs: 7000 });
  });
  it("keep names and addresses as they are written", async () => {
    for (const detail of ["https://example.org/x leads inside.", "name: is empty."]) {
      const problem = await readProblem(new Response(JSON.stringify({ title: "x", detail }), { status: 422, headers: { "content-type": "application/problem+json" } }));
      expect(problem.detail).toBe(detail);
    }
  });
  it("are shown even if the answer is rubbish", async () => {
    for (const [text, type] of [["<html>", "text/html"], ["{", "application/json"], ["null", "application/json"], ['{"title": 5}', "application/json"]] as const) {
      const problem = await readProblem(new Response(text, { status: 503, headers: { "content-type": type, "retry-after": "soon" } }));
      expect(problem.title).toBe("Not available at the moment");
      expect(problem.retryAfterMs).toBeNull();
    }
    expect(problemOfStatus(418).detail).toContain("418");
    expect(problemOfStatus(599).title).toBe("The console has failed");
  });
  it("are made of whatever was thrown", () => {
    const problem = new Problem(1, "a", "b");
    expect(asProblem(problem)).toBe(problem);
    expect(asProblem(new TypeError("fetch failed")).status).toBe(0);
    expect(asProblem("x").detail).toBe("x");
  });
});

describe("charts", () => {
  it("draw nothing where nothing was seen", () => {
    const points = [0, 10, 20, 60, 70].map((at) => ({ at_ms: at * 1000, a: at, b: 1 }));
    const { times, values } = columns(points, ["a", "b"], 10_000);
    expect(times).toEqual([0, 10, 20, 30, 60, 70]);
    expect(values[0]).toEqual([0, 10, 20, null, 60, 70]);
    expect(stacked(values)[1]).toEqual([1, 11, 21, null, 61, 71]);
  });
  it("leave out samples that go back in time", () => {
    const points = [{ at_ms: 5000, a: 1 }, { at_ms: 5000, a: 2 }, { at_ms: 1000, a: 3 }];
    expect(columns(points, ["a"], 1000).times).toEqual([5]);
  });
  it("know their ranges, and take one for none", () => {
    expect(rangeOf("7d").ms).toBe(604_800_000);
    expect(rangeOf("x").key).toBe("1h");
    expect(tickWords([new Date(2026, 10, 21).getTime() / 1000], 3600)).toEqual(["21 Nov"]);
  });
});

describe("the timeline", () => {
  const move = (id: number, at: number, from: string, to: string): Move => ({ id, at_ms: at, receiver: "r", name: "n", channel: "lore", from, to, cause: "joined" });
  it("follows the moves, whatever their order", () => {
    const list = stretches([move(2, 50, "unicast", "multicast"), move(1, 20, "multicast", "unicast")], { rung: "multicast", cause: "joined", since_ms: 50 }, 0, 100, null);
    expect(list.map(({ rung, from, to }) => [rung, from, to])).toEqual([["multicast", 0, 20], ["unicast", 20, 50], ["multicast", 50, 100]]);
  });
  it("is one stretch without moves, from the enrolment on", () => {
    expect(stretches([], { rung: "amt", cause: null, since_ms: null }, 0, 100, 40)).toEqual([{ rung: "amt", from: 40, to: 100, cause: null }]);
    expect(stretches([], { rung: "amt", cause: null, since_ms: null }, 0, 100, 200)).toEqual([]);
  });
  it("shows nothing of what was not seen", () => {
    // No move is known: it stands there since then, and before that is another matter.
    expect(stretches([], { rung: "amt", cause: "joined", since_ms: 70 }, 0, 100, null)).toEqual([{ rung: "amt", from: 70, to: 100, cause: "joined" }]);
    // There are more moves than these before the oldest of them.
    const list = stretches([move(2, 50, "unicast", "multicast"), move(1, 20, "multicast", "unicast")], { rung: "multicast", cause: "joined", since_ms: 50 }, 0, 100, null, 20);
    expect(list.map(({ rung, from, to }) => [rung, from, to])).toEqual([["unicast", 20, 50], ["multicast", 50, 100]]);
  });
  it("ends where the receiver stands now, even if the last move is missing", () => {
    const list = stretches([move(1, 20, "multicast", "unicast")], { rung: "amt", cause: "joined", since_ms: 80 }, 0, 100, null);
    expect(list.map((one) => one.rung)).toEqual(["multicast", "unicast", "amt"]);
    expect(list[2]?.from).toBe(80);
  });
});

describe("how far an update has come", () => {
  const update = (age: number, delivered: number | null) => ({ published_ms: 10_000_000 - age, progress: delivered === null ? null : { expected: 10, delivered, half_ms: null, p99_ms: null, all_ms: null } });
  it("is asked for as long as it may become another", () => {
    const now = 10_000_000;
    expect(isUnderWay(update(2000, 3), now)).toBe(true);
    // Not written yet, and never kept.
    expect(isUnderWay(update(2000, null), now)).toBe(true);
    expect(isUnderWay(update(120_000, null), now)).toBe(false);
    expect(isUnderWay(update(2000, 10), now)).toBe(false);
    // One that never came back: the source follows it for an hour.
    expect(isUnderWay(update(3_500_000, 9), now)).toBe(true);
    expect(isUnderWay(update(3_700_000, 9), now)).toBe(false);
    expect(askAgainMs([update(2000, 10), update(3000, 3)], now)).toBe(3000);
    expect(askAgainMs([update(120_000, 9)], now)).toBe(10_000);
    expect(askAgainMs([update(2000, 10), update(3_700_000, 9)], now)).toBeNull();
  });
});

describe("keys", () => {
  it("of one and of two", () => {
    const reader = new KeyReader();
    expect(reader.press("?", 0)?.text).toMatch(/list/);
    expect(reader.press("g", 0)).toBeNull();
    expect(reader.press("r", 500)?.address).toBe("/receivers");
    expect(reader.press("r", 600)).toBeNull();
    expect(reader.press("g", 1000)).toBeNull();
    expect(reader.press("r", 9000)).toBeNull();
    expect(reader.press("g", 10_000)).toBeNull();
    expect(reader.press("x", 10_100)).toBeNull();
    expect(reader.press("r", 10_200)).toBeNull();
  });
  it("are left alone while the user types", () => {
    const input = document.createElement("input");
    expect(isTyping(input)).toBe(true);
    expect(isTyping(document.createElement("button"))).toBe(false);
    expect(isTyping(null)).toBe(false);
  });
});

describe("the console's clock", () => {
  it("counts only if it is another one", () => {
    const at = Date.parse("Sat, 21 Nov 2026 17:00:00 GMT");
    const answer = (date: string) => new Response("", { headers: { date } });
    skew.read(answer("Sat, 21 Nov 2026 17:00:02 GMT"), at);
    expect(skew.ms).toBe(0);
    skew.read(answer("Sat, 21 Nov 2026 17:05:00 GMT"), at);
    expect(skew.ms).toBe(300_000);
    skew.read(answer("rubbish"), at);
    expect(skew.ms).toBe(300_000);
  });
});
