// What fails at first and passes at its second try is listed, where ./dev lists what else did; too many of them are a failure.
import { appendFileSync } from "node:fs";
import { basename } from "node:path";
import type { Reporter, TestCase } from "vitest/node";

/** More than that is no bad luck. */
const MOST = 3;

export default class Unstable implements Reporter {
  private names: string[] = [];

  onTestCaseResult(test: TestCase): void {
    if (test.result().state === "passed" && (test.diagnostic()?.retryCount ?? 0) > 0) this.names.push(`${basename(test.module.moduleId)}: ${test.fullName}`);
  }

  onTestRunEnd(): void {
    if (!this.names.length) return;
    console.error(`\n!!! UNSTABLE: these failed at first and passed at the second try. That is a defect:\n${this.names.map((name) => `!!!   ${name}\n`).join("")}`);
    if (process.env.FLEXFEED_UNSTABLE) appendFileSync(process.env.FLEXFEED_UNSTABLE, this.names.map((name) => `${name}\n`).join(""));
    if (this.names.length > MOST) {
      console.error(`!!! More than ${MOST}: that is a failure.`);
      process.exitCode = 1;
    }
  }
}
