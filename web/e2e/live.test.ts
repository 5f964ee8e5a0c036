// The watcher of the live test is itself tested here, over the stand-in and a source that is only mentioned.
import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { startMock } from "../mock/server.mjs";

interface Said {
  event: string;
  rung?: string;
  cause?: string;
  text?: string;
  rungs?: string[];
}

it("follows one receiver's fall and return, at the source and in the page", async () => {
  const mock = await startMock({ receivers: 3, signedIn: false, tickMs: 100_000, dist: fileURLToPath(new URL("../dist", import.meta.url)) });
  const all = mock.world.receivers as { name: string; rung: string }[];
  for (const one of all) if (one.rung !== "multicast") mock.world.move(one, "multicast", "joined");
  const victim = all[1]!;
  const source = createServer((_request, response) => response.end(JSON.stringify({ receivers: all.map(({ name, rung }) => ({ name, rung })) })));
  await new Promise<void>((resolve) => source.listen(0, "127.0.0.1", resolve));
  const folder = mkdtempSync(path.join(tmpdir(), "live-"));
  writeFileSync(path.join(folder, "password"), "correct horse\n");
  try {
    const said: Said[] = [];
    const code = await new Promise<number>((resolve) => {
      const child = execFile(process.execPath, [
        fileURLToPath(new URL("live.mjs", import.meta.url)), "--console", mock.url, "--source", `http://127.0.0.1:${(source.address() as AddressInfo).port}`, "--user", "ada",
        "--password-file", path.join(folder, "password"), "--receiver", victim.name, "--others", `${all[0]!.name},${all[2]!.name}`, "--shots", path.join(folder, "shots"),
      ]);
      let rest = "";
      child.stdout?.on("data", (piece: string) => {
        rest += piece;
        const lines = rest.split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) {
          const event = JSON.parse(line) as Said;
          said.push(event);
          if (event.event === "ready") child.stdin?.write("follow unicast fallen\n");
          if (event.event === "watching") {
            const move = victim.rung === "multicast" ? mock.world.move(victim, "unicast", "heartbeat-lost") : mock.world.move(victim, "multicast", "joined");
            mock.live({ changed: [victim], moves: [move] });
          }
          if (event.event === "seen") {
            if (victim.rung === "multicast") child.stdin?.end();
            else child.stdin?.write("follow multicast returned\n");
          }
        }
      });
      child.stderr?.pipe(process.stderr);
      child.on("exit", (status) => resolve(status ?? 1));
    });
    expect(code).toBe(0);
    expect(said.map((one) => one.event).filter((event) => event !== "source" && event !== "page")).toEqual(["ready", "watching", "others", "seen", "watching", "others", "seen"]);
    expect(said.filter((one) => one.event === "source").map((one) => one.rung)).toEqual(["unicast", "multicast"]);
    const pages = said.filter((one) => one.event === "page");
    expect(pages.map((one) => [one.rung, one.cause])).toEqual([["unicast", "heartbeat-lost"], ["multicast", "joined"]]);
    expect(pages[0]?.text).toContain("unicast");
    expect(said.filter((one) => one.event === "others").map((one) => one.rungs)).toEqual([["multicast", "multicast"], ["multicast", "multicast"]]);
    expect(readdirSync(path.join(folder, "shots")).length).toBe(8);
  } finally {
    rmSync(folder, { recursive: true, force: true });
    source.close();
    await mock.close();
  }
});
