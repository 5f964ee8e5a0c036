// npm run lock: renews package-lock.json without the hosts of registries, so that every one does.
// (npm's own setting for that leaves out the versions of packages for other platforms.)
import { execFileSync } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";

const file = new URL("../package-lock.json", import.meta.url);
if (!process.argv.includes("--check")) {
  execFileSync("npm", ["install", "--package-lock-only", "--omit-lockfile-registry-resolved=false"], { cwd: new URL("..", import.meta.url), stdio: "inherit" });
  const lock = JSON.parse(await readFile(file, "utf8"));
  for (const entry of Object.values(lock.packages)) delete entry.resolved;
  await writeFile(file, `${JSON.stringify(lock, null, 2)}\n`);
}
const lock = JSON.parse(await readFile(file, "utf8"));
const bad = Object.entries(lock.packages).filter(([name, entry]) => name !== "" && (entry.resolved || !entry.version || !entry.integrity));
// Packages for other platforms that the registry did not have make `npm ci` fail everywhere: take another version.
for (const [name, entry] of Object.entries(lock.packages)) {
  for (const other of Object.keys(entry.optionalDependencies ?? {})) {
    if (!lock.packages[`node_modules/${other}`] && !lock.packages[`${name}/node_modules/${other}`]) bad.push([`${other} (of ${name})`]);
  }
}
if (bad.length) {
  console.error(`package-lock.json has entries with an address, or without a version or a checksum (npm run lock fixes it): ${bad.map(([name]) => name).join(", ")}`);
  process.exit(1);
}
