// How much a first visit loads, compressed: the page, the entry, and everything that the overview needs.
// Fails above the budget. The chunks that other pages load later are listed, too.
import { readFile, stat } from "node:fs/promises";

const BUDGET_KB = 250;
const AIM_KB = 100;
const FIRST_PAGE = "src/pages/Overview.svelte";
const dist = new URL("../dist/", import.meta.url);
const manifest = JSON.parse(await readFile(new URL("manifest.json", dist), "utf8"));

function gather(key, into) {
  const chunk = manifest[key];
  if (!chunk || into.has(chunk.file)) return;
  into.add(chunk.file);
  for (const css of chunk.css ?? []) into.add(css);
  for (const next of chunk.imports ?? []) gather(next, into);
}

async function sizes(file) {
  const of = async (end) => (await stat(new URL(file + end, dist)).catch(() => null))?.size ?? null;
  const plain = (await of("")) ?? 0;
  return { file, plain, br: (await of(".br")) ?? plain, gz: (await of(".gz")) ?? plain };
}

const first = new Set(["index.html", "theme.js", "favicon.svg"]);
gather("index.html", first);
gather(FIRST_PAGE, first);
if (!manifest[FIRST_PAGE]) throw new Error(`${FIRST_PAGE} is not in the manifest: is the overview still loaded by itself?`);

const rows = await Promise.all([...first].map(sizes));
const later = new Set();
for (const chunk of Object.values(manifest)) {
  for (const file of [chunk.file, ...(chunk.css ?? [])]) if (!first.has(file)) later.add(file);
}
const laterRows = (await Promise.all([...later].map(sizes))).sort((a, b) => b.br - a.br);
const kb = (bytes) => (bytes / 1000).toFixed(1).padStart(9);
const line = (row) => console.log(`${kb(row.plain)} ${kb(row.gz)} ${kb(row.br)}  ${row.file}`);
const sum = (list, key) => list.reduce((all, row) => all + row[key], 0);

console.log("    plain      gzip    brotli  (kB) first load: page and overview");
rows.sort((a, b) => b.br - a.br).forEach(line);
line({ file: "= first load", plain: sum(rows, "plain"), gz: sum(rows, "gz"), br: sum(rows, "br") });
console.log("\n    plain      gzip    brotli  (kB) loaded when they are needed");
laterRows.forEach(line);

const loaded = sum(rows, "gz") / 1000;
console.log(`\nweb_first_load_kb ${loaded.toFixed(1)} (gzip; brotli ${(sum(rows, "br") / 1000).toFixed(1)}), budget ${BUDGET_KB}, aim ${AIM_KB}`);
if (loaded > BUDGET_KB) {
  console.error(`The first load is over its budget of ${BUDGET_KB} kB.`);
  process.exit(1);
}
