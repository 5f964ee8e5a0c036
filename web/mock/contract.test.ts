// @vitest-environment node
// The stand-in answers in the forms of docs/openapi.json: what the pages are tested with is what the
// console sends.
import { existsSync, readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startMock } from "./server.mjs";

interface Schema {
  $ref?: string;
  allOf?: Schema[];
  oneOf?: Schema[];
  anyOf?: Schema[];
  type?: string | string[];
  enum?: unknown[];
  required?: string[];
  properties?: Record<string, Schema>;
  items?: Schema;
}
interface Document {
  paths: Record<string, Record<string, { responses: Record<string, { content?: Record<string, { schema: Schema }> }> }>>;
  components: { schemas: Record<string, Schema> };
}

const file = new URL("../../docs/openapi.json", import.meta.url);
const document: Document | null = existsSync(file) ? (JSON.parse(readFileSync(file, "utf8")) as Document) : null;

function typeOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return Number.isInteger(value) ? "integer" : typeof value;
}

/** What is wrong with a value by a schema; members that the schema does not name are wrong, too. */
function faults(value: unknown, schema: Schema, at: string, known: Set<string> | null = new Set()): string[] {
  if (schema.$ref) return faults(value, document!.components.schemas[schema.$ref.split("/").at(-1)!]!, at, known);
  const either = schema.oneOf ?? schema.anyOf;
  if (either) {
    const tries = either.map((one) => faults(value, one, at));
    return tries.some((one) => one.length === 0) ? [] : (tries.at(-1) ?? []);
  }
  const found: string[] = [];
  const own = known ?? new Set<string>();
  for (const part of schema.allOf ?? []) found.push(...faults(value, part, at, own).filter((fault) => !fault.endsWith("is not in the schema")));
  for (const name of Object.keys(schema.properties ?? {})) own.add(name);
  for (const part of schema.allOf ?? []) names(part, own);
  if (schema.enum && !schema.enum.includes(value)) found.push(`${at}: ${JSON.stringify(value)} is none of ${JSON.stringify(schema.enum)}`);
  if (schema.type) {
    const types = [schema.type].flat();
    const is = typeOf(value);
    if (!types.includes(is) && !(is === "integer" && types.includes("number"))) return [...found, `${at}: ${is} and not ${types.join(" or ")}`];
  }
  if (typeOf(value) === "array" && schema.items) (value as unknown[]).slice(0, 20).forEach((one, row) => found.push(...faults(one, schema.items!, `${at}[${row}]`)));
  if (typeOf(value) === "object" && (schema.properties || schema.allOf)) {
    const object = value as Record<string, unknown>;
    for (const name of schema.required ?? []) if (!(name in object)) found.push(`${at}.${name} is missing`);
    for (const [name, one] of Object.entries(object)) {
      const part = schema.properties?.[name];
      if (part) found.push(...faults(one, part, `${at}.${name}`));
      else if (!own.has(name)) found.push(`${at}.${name} is not in the schema`);
    }
  }
  return found;
}

function names(schema: Schema, into: Set<string>): void {
  if (schema.$ref) names(document!.components.schemas[schema.$ref.split("/").at(-1)!]!, into);
  for (const name of Object.keys(schema.properties ?? {})) into.add(name);
  for (const part of schema.allOf ?? []) names(part, into);
}

describe.skipIf(!document)("the stand-in keeps to the contract", () => {
  let mock: Awaited<ReturnType<typeof startMock>>;
  beforeAll(async () => {
    mock = await startMock({ receivers: 60, signedIn: true, tickMs: 100_000 });
  });
  afterAll(() => mock.close());

  function schemaOf(method: string, path: string, status: number): Schema {
    const schema = document!.paths[`/api/v1${path}`]?.[method]?.responses[status]?.content?.["application/json"]?.schema;
    if (!schema) throw new Error(`docs/openapi.json has no ${method} ${path} with ${status}`);
    return schema;
  }

  it.each([
    ["/session"], ["/overview"], ["/samples"], ["/moves"], ["/receivers"], ["/channels"], ["/relays"], ["/feeds"], ["/updates"], ["/enrolments"], ["/users"], ["/api-tokens"], ["/audit"],
    ["/receivers/{id}"], ["/receivers/{id}/moves"], ["/receivers/{id}/sessions"], ["/channels/{name}"], ["/feeds/{id}/history"], ["/updates/{channel}/{seq}"],
  ])("GET %s", async (path) => {
    const update = mock.world.updates[0]!;
    const id = path.startsWith("/feeds") ? mock.world.feeds[0]!.id : mock.world.receivers[0]!.id;
    const address = path.replace(/^\/updates$/, "/updates?channel=lore").replace("{id}", id).replace("{name}", "lore").replace("{channel}", update.channel).replace("{seq}", String(update.seq));
    const response = await fetch(`${mock.url}/api/v1${address}`);
    expect(response.status).toBe(200);
    expect(faults(await response.json(), schemaOf("get", path, 200), path).slice(0, 8)).toEqual([]);
  });

  it.each([
    ["/channels", { name: "more" }, 201],
    ["/channels/{name}/rekey", {}, 202],
    ["/feeds", { channel: "news", url: "https://example.org/f" }, 201],
    ["/feeds/test", { url: "https://example.org/f" }, 200],
    ["/enrolments", { label: "x", channels: ["lore"] }, 201],
    ["/users", { name: "new", password: "long enough it is", role: "viewer" }, 201],
    ["/api-tokens", { name: "x", scopes: ["read"] }, 201],
    ["/source/drain", {}, 202],
  ])("POST %s", async (path, body, status) => {
    const response = await fetch(`${mock.url}/api/v1${path.replace("{name}", "lore")}`, { method: "POST", headers: { "x-csrf-token": "standing" }, body: JSON.stringify(body) });
    expect(response.status).toBe(status);
    expect(faults(await response.json(), schemaOf("post", path, status), path)).toEqual([]);
  });

  it("sends snapshots and deltas as the console does", async () => {
    const response = await fetch(`${mock.url}/api/v1/events?limit=20`);
    const reader = response.body!.getReader();
    const texts: Record<string, unknown> = {};
    let rest = "";
    while (!texts.delta) {
      mock.live(mock.world.tick());
      rest += new TextDecoder().decode((await reader.read()).value);
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const type = /^event: (\w+)$/m.exec(block)?.[1];
        const data = /^data: (.*)$/m.exec(block)?.[1];
        if (type && data) texts[type] = JSON.parse(data);
      }
    }
    await reader.cancel();
    expect(faults(texts.snapshot, { $ref: "#/components/schemas/Snapshot" }, "snapshot").slice(0, 8)).toEqual([]);
    expect(faults(texts.delta, { $ref: "#/components/schemas/Update" }, "delta").slice(0, 8)).toEqual([]);
  });

  it("sends a returning watcher only what it missed, and nothing if that is nothing", async () => {
    const own = await startMock({ receivers: 3, signedIn: true, tickMs: 100_000 });
    const read = async (id: string | null) => {
      const response = await fetch(`${own.url}/api/v1/events`, { headers: id ? { "last-event-id": id } : {} });
      const reader = response.body!.getReader();
      let text = "";
      // What is there at once; nothing else would come for 100 s.
      const quiet = new Promise<null>((resolve) => setTimeout(() => resolve(null), 300));
      for (;;) {
        const piece = await Promise.race([reader.read(), quiet]);
        if (!piece || piece.done) break;
        text += new TextDecoder().decode(piece.value);
      }
      await reader.cancel();
      return { text, id: /[^]*^id: (.*)$/m.exec(text)?.[1] ?? id };
    };
    const first = await read(null);
    expect(first.text).toContain("event: snapshot");
    const again = await read(first.id);
    expect(again.text).toBe("retry: 2000\n\n");
    const victim = own.world.receivers[0]!;
    own.live({ changed: [victim], moves: [own.world.move(victim, "unicast", "heartbeat-lost")] });
    const later = await read(first.id);
    expect(later.text).toContain("event: delta");
    expect(later.text).not.toContain("event: snapshot");
    expect((await read("of-another-run-1-1")).text).toContain("event: snapshot");
    expect((await fetch(`${own.url}/api/v1/events?rung=foo&limit=5`)).status).toBe(400);
    await own.close();
  });

  it("would notice", () => {
    const schema: Schema = { type: "object", required: ["a"], properties: { a: { type: ["integer", "null"] } } };
    expect(faults({ a: 1 }, schema, "x")).toEqual([]);
    expect(faults({}, schema, "x")).toEqual(["x.a is missing"]);
    expect(faults({ a: "1", b: 2 }, schema, "x")).toEqual(["x.a: string and not integer or null", "x.b is not in the schema"]);
  });
});
