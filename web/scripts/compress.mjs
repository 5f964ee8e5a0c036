// Writes a .br and a .gz beside every file of dist that gets smaller by it, for the console to serve as they are.
import { readdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";

const brotli = promisify(brotliCompress);
const zip = promisify(gzip);
const dist = new URL("../dist/", import.meta.url).pathname;

async function* files(folder) {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const name = path.join(folder, entry.name);
    if (entry.isDirectory()) yield* files(name);
    else yield name;
  }
}

for await (const name of files(dist)) {
  if (!/\.(?:js|css|html|svg|json)$/.test(name) || path.basename(name) === "manifest.json") continue;
  const bytes = await readFile(name);
  // The largest quality takes long for the API page's megabyte and gives little.
  const quality = bytes.length > 500_000 ? 9 : 11;
  const packed = [
    [".br", await brotli(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: quality, [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } })],
    [".gz", await zip(bytes, { level: 9 })],
  ];
  for (const [end, small] of packed) {
    if (small.length < bytes.length) await writeFile(name + end, small);
    else await rm(name + end, { force: true });
  }
}
