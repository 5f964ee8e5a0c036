import { describe, expect, it } from "vitest";
import { packetSizeOf, rateOf, repairsOf } from "../lib/flow";

describe("the rate of a flow", () => {
  it("is read from what the source reports", () => {
    const report = { rate_bps: 2_000_000, limited_by: "5f1e0c1a-6b1d-4c8e-9a53-0d4b7c2e8f10", breaker: "halved", members: 3 };
    expect(rateOf(report)).toEqual({ bps: 2_000_000, limitedBy: report.limited_by, breaker: "halved" });
  });

  it("is unknown in a report without one, or of another form", () => {
    const nothing = { bps: null, limitedBy: null, breaker: "closed" };
    for (const report of [undefined, null, "x", {}, { rate_bps: "fast", limited_by: 3, breaker: "ajar" }]) expect(rateOf(report)).toEqual(nothing);
  });
});

describe("the size of a flow's packets", () => {
  it("is read from what the source reports", () => {
    expect(packetSizeOf({ packet_size: 1_232, narrow_members: 2, members: 20 })).toEqual({ bytes: 1_232, narrow: 2 });
  });

  it("is unknown in a report without one, or of another form", () => {
    for (const report of [undefined, null, "x", {}, { packet_size: "large", narrow_members: null }]) expect(packetSizeOf(report)).toEqual({ bytes: null, narrow: 0 });
  });
});

describe("the repair packets of a flow", () => {
  it("are read from what the source reports", () => {
    expect(repairsOf({ repair_symbols: 340, rebuilt: 12_030, members: 20 })).toEqual({ sent: 340, saved: 12_030 });
  });

  it("are unknown in a report without them, or of another form", () => {
    for (const report of [undefined, null, "x", {}, { repair_symbols: "many", rebuilt: null }]) expect(repairsOf(report)).toEqual({ sent: null, saved: 0 });
  });
});
