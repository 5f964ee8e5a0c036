// The page with hot reloading, over the stand-in, or over a real console: npm run dev -- --api http://127.0.0.1:9470
import { parseArgs } from "node:util";
import { createServer } from "vite";
import { startMock } from "../mock/server.mjs";

const { values } = parseArgs({ options: { api: { type: "string" }, receivers: { type: "string", default: "5000" }, hostile: { type: "boolean", default: false } } });
const target = values.api ?? (await startMock({ receivers: Number(values.receivers), signedIn: true, hostile: values.hostile })).url;
const server = await createServer({ server: { proxy: { "/api": { target, changeOrigin: true } } } });
await server.listen();
server.printUrls();
