// @vitest-environment node
import { describe, expect, it } from "vitest";
import { World } from "./world.mjs";

describe("the stand-in", () => {
  it("is the same for the same seed, and another for another", () => {
    const at = () => 1_795_000_000_000;
    const names = (seed: number) => new World({ receivers: 50, seed, now: at }).receivers.map((one: { id: string }) => one.id);
    expect(names(1)).toEqual(names(1));
    expect(names(1)).not.toEqual(names(2));
  });
  it("counts everybody once", () => {
    const world = new World({ receivers: 300, seed: 3 });
    for (let at = 0; at < 20; at += 1) world.tick();
    const all = world.all();
    expect(all.total).toBe(300);
    expect(all.multicast + all.amt + all.replicated + all.unicast + all.offline).toBe(300);
    expect(all.connected + all.offline).toBe(300);
  });
});
