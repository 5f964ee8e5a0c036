import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  resolve: { conditions: ["browser"] },
  test: { include: ["src/**/*.test.ts", "mock/**/*.test.ts"], environment: "jsdom", testTimeout: 60_000, hookTimeout: 120_000 },
});
