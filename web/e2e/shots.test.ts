// Pictures of every page, for people to look at: taken where FLEXFEED_SHOTS names a folder for them.
import path from "node:path";
import { expect, it } from "vitest";
import { takeShots } from "../scripts/shots.mjs";

const folder = process.env.FLEXFEED_SHOTS;

it.skipIf(!folder)("every page has its picture, with 3 and 5,000 receivers", async () => {
  const { made, faults } = await takeShots({ out: path.join(folder!, "pages"), counts: [3, 5000] });
  expect(faults).toEqual([]);
  expect(made).toBeGreaterThan(140);
}, 900_000);
