import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { describe, expect, it } from "vitest";
import type { Move } from "../lib/api/types";
import feedsPage from "../pages/Feeds.svelte?raw";
import { finder } from "../lib/search";
import { ACTIONS, actionWords, AUTHENTICATIONS, authenticationWords, causeWords, CAUSES, DEFINITIONS, detailWords, direction, FECS, feedWords, groupMoves, happenings, isOfKind, moveVerb, nameOf, repairWords, RUNGS, rungWords, typedName, verdict } from "../lib/words";

function move(id: number, at: number, more: Partial<Move> = {}): Move {
  return { id, at_ms: at, receiver: `r${id}`, name: `n${id}`, channel: "lore", from: "multicast", to: "unicast", cause: "heartbeat-lost", ...more };
}

describe("words", () => {
  it("knows every rung and cause of the protocol", () => {
    expect(RUNGS.map((one) => one.rung)).toEqual(["multicast", "amt", "replicated", "unicast", "offline"]);
    const causes = ["joined", "probe-timeout", "ack-timeout", "heartbeat-lost", "relay-lost", "leg-lost", "loss-too-high", "too-slow", "flow-invalid", "forged", "rekey-missed", "ejected", "left", "network-changed"];
    expect(Object.keys(CAUSES).sort()).toEqual([...causes].sort());
    for (const cause of causes) expect(causeWords(cause).text.length).toBeGreaterThan(20);
  });

  it("says of the numbers what the API says", () => {
    expect(DEFINITIONS.updates_per_min).toContain("the last hour");
    expect(DEFINITIONS.behind_updates).toContain("the channel on which it is most behind");
    expect(DEFINITIONS.behind_updates).not.toContain("all its channels");
    expect(DEFINITIONS.seen).toContain("the last admission");
  });

  it("asks for titles as the API takes them", () => {
    expect(feedsPage).toContain('bind:value={title} maxlength="200"');
    expect(feedsPage).not.toContain("take the feed's own");
  });

  // In a copy of this folder alone the document is not there.
  const document = path.join(import.meta.dirname, "../../../docs/openapi.json");
  it.skipIf(!existsSync(document))("offers every authentication of packets that the API takes", () => {
    const { pattern } = JSON.parse(readFileSync(document, "utf8")).components.schemas.NewChannel.properties.packet_authentication;
    const types = AUTHENTICATIONS.map((one) => one.type);
    expect(pattern.slice(2, -2).split("|").sort()).toEqual([...types].sort());
    expect(new Set(types.map(authenticationWords)).size).toBe(types.length);
  });

  it.skipIf(!existsSync(document))("offers erasure coding that the API takes", () => {
    const { pattern } = JSON.parse(readFileSync(document, "utf8")).components.schemas.NewChannel.properties.fec;
    for (const one of FECS) expect(one.type).toMatch(new RegExp(pattern));
    expect(FECS.map((one) => one.type)).toContain("off");
  });

  it("says what repair packets saved", () => {
    expect(repairWords(340, 12_030)).toBe("340 repair packets sent, 12,030 repairs saved");
    expect(repairWords(1, 0)).toBe("1 repair packet sent, 0 repairs saved");
    expect(repairWords(null, 0)).toBe("");
  });

  it("shows what it does not know as it is", () => {
    expect(authenticationWords("of-tomorrow")).toContain("of-tomorrow");
    expect(causeWords("of-tomorrow").short).toBe("of-tomorrow");
    expect(causeWords(null).short).toMatch(/no cause/);
    expect(causeWords("unverified").short).toBe("does not verify signatures");
    expect(rungWords("warp").label).toBe("warp");
    expect(feedWords("strange").label).toBe("strange");
  });

  it("calls a receiver by what can be seen, and asks for what can be typed", () => {
    const id = "0123456789abcdef";
    for (const [name, label, called, typed] of [
      ["ams-1", null, "ams-1", "ams-1"],
      ["ams-1", "Front desk", "Front desk", "Front desk"],
      ["ams-1 ", null, "ams-1", "ams-1"],
      ["two  blanks", null, "two  blanks", "two blanks"],
      ["", null, id, "01234567"],
      ["  ", null, id, "01234567"],
      ["x".repeat(41), null, "x".repeat(41), "01234567"],
      ["\u202eabc", null, "\u202eabc", "01234567"],
      ["مرحبا", null, "مرحبا", "مرحبا"],
    ] as const) {
      expect(nameOf({ id, name, label }), JSON.stringify(name)).toBe(called);
      expect(typedName({ id, name, label }), JSON.stringify(name)).toBe(typed);
    }
  });

  it("tells a climb from a fall", () => {
    expect(direction("unicast", "multicast")).toBe(-1);
    expect(direction("amt", "unicast")).toBe(1);
    expect(direction("amt", "amt")).toBe(0);
    expect(moveVerb("multicast", "unicast")).toMatch(/fell back/);
    expect(moveVerb("unicast", "amt")).toMatch(/climbed/);
    expect(moveVerb("unicast", "offline")).toMatch(/offline/);
    expect(moveVerb("offline", "unicast")).toMatch(/back/);
    expect(moveVerb("amt", "amt")).toBe("stays on");
  });

  it("makes one event of many for the same reason", () => {
    const moves = [...Array.from({ length: 300 }, (_, at) => move(1000 - at, 100_000 - at * 5)), move(3, 90_000), move(2, 89_000, { cause: "left" })];
    const groups = groupMoves(moves);
    expect(groups.map((group) => group.count)).toEqual([300, 1, 1]);
    expect(groups[0]?.since_ms).toBe(100_000 - 299 * 5);
  });

  it("counts receivers, and not their moves", () => {
    const flapping = [move(3, 3000), move(2, 2000, { receiver: "r3" }), move(1, 1500)];
    expect(groupMoves(flapping).map((group) => group.count)).toEqual([2]);
  });

  it("does not group over time without end", () => {
    const groups = groupMoves([move(3, 10_000), move(2, 8000), move(1, 1000)]);
    expect(groups.map((group) => group.count)).toEqual([2, 1]);
  });
});

describe("what just happened", () => {
  it("is moves and both ends of overloads, newest first", () => {
    const overloads = [
      { since_ms: 9000, until_ms: null, late: ["engine", "new-word"] },
      { since_ms: 1000, until_ms: 5000, late: ["publishing"] },
    ];
    const all = happenings(groupMoves([move(2, 7000), move(1, 3000, { cause: "left" })]), overloads);
    expect(all.map((one) => one.at_ms)).toEqual([9000, 7000, 5000, 3000, 1000]);
    const texts = all.flatMap((one) => ("load" in one ? [one.load.text] : []));
    expect(texts).toEqual([
      "The source cannot keep up: packets and timers are handled late, new-word",
      "The source keeps up again, after 4 s",
      "The source cannot keep up: updates wait before they are sent",
    ]);
  });
});

describe("is everybody getting everything", () => {
  const base = { total: 100, connected: 98, offline: 2, behind: 0, worst_lag_updates: 0, worst_lag_ms: 0 };
  it("yes", () => {
    expect(verdict(base)).toMatchObject({ tone: "good", word: "Yes" });
    expect(verdict(base).sentence).toContain("2 receivers are offline");
    expect(verdict({ ...base, connected: 1, total: 1, offline: 0 }).sentence).toBe("The connected receiver holds every update.");
  });
  it("does not cry while an update is on its way", () => {
    expect(verdict({ ...base, behind: 98, worst_lag_updates: 100, worst_lag_ms: 400 })).toMatchObject({ tone: "good", word: "Yes" });
  });
  it("does not take many updates for news that are on their way", () => {
    expect(verdict({ ...base, behind: 1, worst_lag_updates: 101, worst_lag_ms: 0 })).toMatchObject({ tone: "warn", word: "Nearly" });
    expect(verdict({ ...base, behind: 40, worst_lag_updates: 5000, worst_lag_ms: 400 })).toMatchObject({ tone: "bad" });
  });
  it("nearly, or not", () => {
    expect(verdict({ ...base, behind: 3, worst_lag_ms: 9000 })).toMatchObject({ tone: "warn", word: "Nearly" });
    expect(verdict({ ...base, behind: 40, worst_lag_ms: 9000 })).toMatchObject({ tone: "bad" });
    expect(verdict({ ...base, connected: 0, offline: 100 })).toMatchObject({ tone: "bad", word: "No" });
  });
  it("no receivers", () => {
    expect(verdict({ total: 0, connected: 0, offline: 0, behind: 0, worst_lag_updates: null, worst_lag_ms: null }).tone).toBe("plain");
  });
});

describe("the audit log", () => {
  // What the console's and the source's own code writes into it; in a copy of this folder alone they are not there.
  const sources = ["crates/console/src/api/actions.rs", "services/console/src/commands/mod.rs", "services/source/src/commands/audit.rs"].map((name) => path.join(import.meta.dirname, "../../..", name));
  it.skipIf(!sources.every((name) => existsSync(name)))("can be narrowed down to every action that is in it", () => {
    const text = sources.map((name) => readFileSync(name, "utf8")).join("\n");
    const named = [
      ...text.matchAll(/"(?:POST|PUT|PATCH|DELETE)",\s*"\/api\/v1\/[^"]*",\s*"([^"]+)"/g),
      ...text.matchAll(/Note::new\(\s*"([^"]+)"/g),
      ...text.matchAll(/\bnote\(\s*\w+,\s*"([^"]+)"/g),
    ].map((found) => found[1]!);
    expect(named.length).toBeGreaterThan(25);
    expect([...new Set(named)].filter((action) => !(action in ACTIONS))).toEqual([]);
  });
  it("says what was done in words, and shows what it does not know", () => {
    expect(actionWords("feed.edit")).toBe("change a feed");
    expect(actionWords("moon.paint")).toBe("moon.paint");
    expect(detailWords({ label: "Front desk", tags: ["a", "b"], held: false, limit: null, min_interval_ms: 5 })).toBe("label: Front desk; tags: a, b; held: false; min interval ms: 5");
    expect(detailWords({})).toBe("");
    expect(detailWords(null)).toBe("");
  });
});

describe("filters of feeds", () => {
  it("put each state where people look for it", () => {
    expect(isOfKind("not-modified", "ok")).toBe(true);
    for (const state of ["error", "gone", "not-a-feed"]) expect(isOfKind(state, "failing"), state).toBe(true);
    expect(isOfKind("challenged", "failing")).toBe(false);
    for (const state of ["error", "challenged"]) expect(isOfKind(state, "trouble"), state).toBe(true);
    for (const state of ["ok", "paused", "pending"]) expect(isOfKind(state, "trouble"), state).toBe(false);
  });
});

describe("a search", () => {
  it("wants every word, in any order and case", () => {
    expect(finder("Desk  FRONT")("front desk 7")).toBe(true);
    expect(finder("desk 8")("front desk 7")).toBe(false);
    expect(finder("")("anything")).toBe(true);
  });
});
