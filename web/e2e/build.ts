// The tests run over the page as it is built. SKIP_BUILD=1 takes the one that is there.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

export default function build(): void {
  const web = fileURLToPath(new URL("..", import.meta.url));
  if (process.env.SKIP_BUILD && existsSync(`${web}dist/index.html`)) return;
  execFileSync("npm", ["run", "build"], { cwd: web, stdio: "inherit" });
}
