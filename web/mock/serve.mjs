// npm run mock -- --receivers 5000 --port 9471 [--dist dist] [--signed-in] [--hostile] [--setup] [--role viewer]
import { parseArgs } from "node:util";
import { startMock } from "./server.mjs";

const { values } = parseArgs({
  options: {
    receivers: { type: "string", default: "5000" },
    port: { type: "string", default: "9471" },
    seed: { type: "string", default: "7" },
    dist: { type: "string" },
    role: { type: "string" },
    "signed-in": { type: "boolean", default: false },
    hostile: { type: "boolean", default: false },
    setup: { type: "boolean", default: false },
  },
});
const mock = await startMock({
  receivers: Number(values.receivers), port: Number(values.port), seed: Number(values.seed), dist: values.dist ?? null, role: values.role,
  signedIn: values["signed-in"], hostile: values.hostile, setup: values.setup,
});
console.log(`The stand-in for the console is at ${mock.url}${values["signed-in"] ? "" : ' (sign in as ada with "correct horse")'}${values.setup ? " /setup#one-time-token" : ""}`);
