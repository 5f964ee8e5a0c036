import { defineConfig } from "vitest/config";
import Unstable from "./e2e/unstable";

export default defineConfig({
  test: {
    include: ["e2e/**/*.test.ts"],
    environment: "node",
    fileParallelism: false,
    testTimeout: 300_000,
    // The default is one second, which a busy machine may take for anything.
    expect: { poll: { timeout: 60_000, interval: 100 } },
    hookTimeout: 120_000,
    // As ./dev test does with all that work against the clock: what fails twice has failed, and what failed once is reported.
    reporters: ["default", new Unstable()],
    retry: process.env.FLEXFEED_STRICT ? 0 : 1,
    globalSetup: "./e2e/build.ts",
  },
});
