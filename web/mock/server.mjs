// Stands in for the console: the API over a made-up world, and the built page with the headers
// that the console sends.
import { randomBytes } from "node:crypto";
import { readFile, stat } from "node:fs/promises";
import { createServer } from "node:http";
import path from "node:path";
import { World } from "./world.mjs";

const FILTERS = ["q", "rung", "channel", "tag", "connected", "cause", "behind", "forged", "revoked", "sort", "order", "cursor", "offset", "limit"];

/** The console refuses what it does not know. */
const QUERIES = {
  events: [...FILTERS, "receiver"],
  receivers: [...FILTERS, "format"],
  moves: ["receiver", "channel", "cause", "rung", "from_ms", "to_ms", "cursor", "limit", "format"],
  samples: ["channel", "from_ms", "to_ms", "points"],
  updates: ["channel", "before", "cursor", "limit", "format"],
  audit: ["actor", "action", "before", "cursor", "limit", "format"],
  feeds: ["channel", "cursor", "limit", "format"],
};

/** The content security policy that the page has to live with. */
export const POLICY = [
  "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:", "font-src 'self'", "connect-src 'self'",
  "frame-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'",
].join("; ");

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json" };
const WORST = ["multicast", "amt", "replicated", "unicast", "offline"];
const SORTS = {
  name: (r) => (r.label ?? r.name).toLowerCase(),
  rung: (r) => WORST.indexOf(r.rung),
  lag: (r) => r.behind_updates,
  rtt: (r) => r.rtt_ms ?? Infinity,
  since: (r) => r.since_ms ?? 0,
  seen: (r) => r.seen_ms ?? 0,
  enrolled: (r) => r.enrolled_ms ?? 0,
};

/** So many events are kept for those who come back. */
const RING = 64;
/** So long after the last one of them. */
const IDLE_MS = 60_000;

class Refusal extends Error {
  constructor(status, title, detail, more = {}) {
    super(title);
    Object.assign(this, { status, title, detail, more });
  }
}

function refuseUnknown(query, known) {
  for (const key of query.keys()) if (!known.includes(key)) throw new Refusal(400, "The request cannot be understood", `there is no parameter ${key}`);
  for (const [key, values] of [["rung", WORST], ["sort", Object.keys(SORTS)], ["order", ["asc", "desc"]], ["connected", ["true", "false"]], ["behind", ["true", "false"]], ["forged", ["true", "false"]], ["revoked", ["true", "false"]]]) {
    const value = query.get(key);
    if (known.includes(key) && value !== null && !values.includes(value)) throw new Refusal(400, "The request cannot be understood", `${key}: unknown variant ${value}`);
  }
}

/** The same, but for the times in it. */
const likeness = (overview) => JSON.stringify(overview, (key, value) => (["as_of_ms", "at_ms", "seen_ms", "worst_lag_ms"].includes(key) ? undefined : value));

/** Receivers that were removed are a list of their own. */
const listOf = (world, query) => (query.get("revoked") === "true" ? world.removed : world.receivers);

function filterReceivers(world, query) {
  const q = (query.get("q") ?? "").toLowerCase();
  const wanted = ["rung", "channel", "tag", "cause"].map((key) => [key, query.get(key)]);
  const [rung, channel, tag, cause] = wanted.map(([, value]) => value);
  const connected = query.get("connected");
  let rows = listOf(world, query);
  if (q || rung || channel || tag || cause || connected !== null || query.get("behind") === "true" || query.has("forged")) {
    rows = rows.filter(
      (r) =>
        (!q || r.name.toLowerCase().includes(q) || (r.label ?? "").toLowerCase().includes(q) || r.id.startsWith(q) || (r.address ?? "").includes(q)) &&
        (!rung || r.rung === rung) &&
        (!channel || r.channels.some((one) => one.channel === channel)) &&
        (!tag || r.tags.includes(tag)) &&
        (!cause || r.cause === cause) &&
        (connected === null || String(r.connected) === connected) &&
        (query.get("behind") !== "true" || r.behind_updates > 0) &&
        (!query.has("forged") || String((channel ? r.channels.find((one) => one.channel === channel) : r).forgeries !== null) === query.get("forged")),
    );
  }
  const key = SORTS[query.get("sort") ?? "name"];
  const order = query.get("order") === "desc" ? -1 : 1;
  const keyed = rows.map((row) => [key(row), row]);
  keyed.sort(([a, ra], [b, rb]) => (a < b ? -order : a > b ? order : ra.id < rb.id ? -1 : 1));
  return keyed.map(([, row]) => row);
}

function receiverPage(world, query, standard) {
  const rows = filterReceivers(world, query);
  const limit = Math.min(500, Number(query.get("limit") ?? standard));
  const offset = Number(query.get("cursor") ?? query.get("offset") ?? 0);
  const items = rows.slice(offset, offset + limit);
  return { items, next_cursor: offset + limit < rows.length ? String(offset + limit) : null, total: listOf(world, query).length, filtered: rows.length, unknown_since_ms: null };
}

function paged(list, query, standard = 50) {
  const limit = Math.min(500, Number(query.get("limit") ?? standard));
  const from = Number(query.get("cursor") ?? query.get("before") ?? 0);
  return { items: list.slice(from, from + limit), next_cursor: from + limit < list.length ? String(from + limit) : null };
}

function csvCell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  const guarded = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(guarded) ? `"${guarded.replaceAll('"', '""')}"` : guarded;
}

/**
 * Starts the stand-in. Options: `receivers`, `seed`, `hostile`, `port`, `dist` (a folder to serve),
 * `many` (long lists), `signedIn` (skips sign-in), `setup` (no user yet), `tickMs`, `policy` (false: without a content security policy).
 */
export async function startMock(options = {}) {
  const { port = 0, dist = null, tickMs = 1000, signedIn = false, setup = false, policy = true } = options;
  const world = new World(options);
  const sessions = new Map();
  const clients = new Set();
  const requests = [];
  let setupToken = setup ? "one-time-token" : null;
  if (setup) world.users = [];
  let refusing = false;
  const run = randomBytes(8).toString("hex");
  const topics = new Map();
  let topicNumber = 0;
  let overviewSent = likeness(world.overview());
  const feedsSent = new Map(world.feeds.map((feed) => [feed.id, JSON.stringify(feed)]));

  function userOf(request) {
    const cookie = /(?:^|; )flexfeed=([0-9a-f]+)/.exec(request.headers.cookie ?? "");
    const session = cookie && sessions.get(cookie[1]);
    if (session) return session;
    if (signedIn) {
      const made = { user: world.users.find((user) => user.role === (options.role ?? "operator")), csrf: "standing" };
      return made;
    }
    return null;
  }

  function commandFor(kind, result) {
    const id = (world.nextId += 1);
    const command = { id, kind, state: "taken", result: null };
    world.commands.set(id, command);
    setTimeout(() => Object.assign(command, { state: "done", result }), 700).unref();
    return { command_id: id };
  }

  function note(user, action, target, detail = {}) {
    world.audit.unshift({ id: (world.nextId += 1), at_ms: world.now(), actor: user?.name ?? "?", via: "session", action, target, detail, outcome: "ok", address: "127.0.0.1" });
  }

  const find = (list, id, what) => {
    const found = list.find((one) => String(one.id) === id || one.name === id);
    if (!found) throw new Refusal(404, `There is no such ${what}`, `${what} ${id} is not known; it may have been removed.`);
    return found;
  };
  const need = (user) => {
    if (user.role !== "operator") throw new Refusal(403, "You may not do that", "Your role is viewer; it takes an operator.");
  };

  async function api(request, url, respond) {
    const { method } = request;
    const query = url.searchParams;
    const parts = url.pathname.slice("/api/v1/".length).split("/").map(decodeURIComponent);
    const route = `${method} ${parts[0]}`;
    let body = {};
    if (method !== "GET") {
      let text = "";
      for await (const piece of request) text += piece;
      if (text) body = JSON.parse(text);
    }
    const known = parts.length === 1 || parts[1] === "export" ? QUERIES[parts[0]] : null;
    if (method === "GET" && known) {
      refuseUnknown(query, known);
    }
    if (route === "POST setup") {
      if (!setupToken || body.token !== setupToken) throw new Refusal(403, "This setup link does not work", "It was used already, or is not the newest one. The console prints a new one at its start while there is no user.");
      if (String(body.password).length < 10) throw new Refusal(422, "The password is too short", "Take at least 10 characters.");
      setupToken = null;
      world.users = [{ id: 1, name: body.name, password: body.password, role: "operator", created_ms: world.now(), disabled_ms: null }];
      return signIn(world.users[0], respond);
    }
    if (route === "POST session" && !parts[1]) {
      const user = world.users.find((one) => one.name === body.name && one.password === body.password && !one.disabled_ms);
      if (!user) throw new Refusal(401, "That is not right", "Name and password do not fit together.");
      return signIn(user, respond);
    }
    if (route === "GET openapi.json") return respond(200, JSON.parse(await readFile(options.openapi ?? new URL("../../docs/openapi.json", import.meta.url), "utf8")));
    const session = userOf(request);
    if (!session) throw new Refusal(401, "You are not signed in", "Sign in to go on.", { setup_needed: setupToken !== null });
    const { user } = session;
    if (method !== "GET" && request.headers["x-csrf-token"] !== session.csrf) throw new Refusal(403, "The request seems to come from another site", "send the `csrf` of GET /api/v1/session as the header X-CSRF-Token", { type: "urn:flexfeed:problem:cross-site" });
    switch (route) {
      case "GET session":
        return respond(200, { user: { name: user.name, role: user.role }, csrf: session.csrf });
      case "POST session":
        if (body.current !== user.password) throw new Refusal(422, "A value cannot be used", "current: that is not your password");
        user.password = body.password;
        return respond(204, null);
      case "DELETE session":
        for (const [key, one] of sessions) if (one === session) sessions.delete(key);
        return respond(204, null, { "set-cookie": "flexfeed=; Path=/; Max-Age=0" });
      case "GET overview":
        return respond(200, world.overview());
      case "GET samples": {
        const to = Number(query.get("to_ms") ?? world.now());
        return respond(200, world.samples(query.get("channel"), Number(query.get("from_ms") ?? to - 3_600_000), to, Number(query.get("points") ?? 500)));
      }
      case "GET moves": {
        if (parts[1] === "export") return exportRows(world.moves, query, respond);
        const filters = [["receiver", "receiver"], ["channel", "channel"], ["cause", "cause"], ["rung", "to"]];
        return respond(200, paged(world.moves.filter((move) => filters.every(([key, field]) => !query.get(key) || move[field] === query.get(key))), query));
      }
      case "GET receivers": {
        if (!parts[1]) return respond(200, receiverPage(world, query, 100));
        if (parts[1] === "export") return exportRows(filterReceivers(world, query), query, respond);
        const receiver = find([...world.receivers, ...world.removed], parts[1], "receiver");
        if (parts[2] === "moves") return respond(200, paged(world.moves.filter((move) => move.receiver === receiver.id), query));
        if (parts[2] === "sessions") return respond(200, paged(world.sessionsOf(receiver.id), query));
        return respond(200, receiver);
      }
      case "PATCH receivers": {
        need(user);
        const receiver = find(world.receivers, parts[1], "receiver");
        if (body.label !== undefined && body.label !== null) receiver.label = body.label || null;
        if (body.tags) {
          if (body.tags.some((tag) => tag.length > 64)) throw new Refusal(422, "A tag is too long", "A tag has at most 64 characters.");
          receiver.tags = body.tags;
        }
        if ("held" in body) {
          receiver.held = body.held;
          if (body.held && receiver.rung !== "unicast" && receiver.connected) live({ changed: [receiver], moves: [world.move(receiver, "unicast", "ejected")] });
        }
        note(user, "receiver.edit", receiver.name, body);
        live({ changed: [receiver], moves: [] });
        return respond(200, receiver);
      }
      case "POST receivers": {
        need(user);
        const receiver = find(world.receivers, parts[1], "receiver");
        note(user, "receiver.disconnect", receiver.name);
        if (receiver.connected) live({ changed: [receiver], moves: [world.move(receiver, "offline", "ejected")] });
        return respond(202, commandFor("disconnect", "its connection was closed"));
      }
      case "DELETE receivers": {
        need(user);
        const receiver = find([...world.receivers, ...world.removed], parts[1], "receiver");
        world.receivers = world.receivers.filter((one) => one !== receiver);
        world.removed = world.removed.filter((one) => one !== receiver);
        world.byId.delete(receiver.id);
        // Until it is forgotten it is known, and refused.
        if (query.get("forget") !== "true") world.removed.push(Object.assign(receiver, { revoked: true, connected: false }));
        note(user, "receiver.remove", receiver.name, { forget: query.get("forget") === "true" });
        live({ changed: [], moves: [] });
        return respond(204, null);
      }
      case "GET channels": {
        const list = world.overview().channels.map((channel) => ({
          ...channel, created_ms: world.startedMs, private: channel.name === "news", packet_authentication: world.authentications[channel.name] ?? "none", fec: world.fecs[channel.name] ?? "adaptive", deadline_ms: world.deadlines[channel.name] ?? null, rate_bps: null, keep_updates: null, keep_ms: null, flow: channel.name === "lore" ? { repair_symbols: 340, rebuilt: 12_030 } : null, origin: "managed", published_by: "source-1", groups: ["232.70.70.1:4434", "[ff3e::4646:1]:4434"],
          key_sequence: world.keySequence[channel.name], feeds: world.feeds.filter((feed) => feed.channel === channel.name).length, first: 1,
        }));
        return respond(200, parts[1] ? find(list, parts[1], "channel") : { items: list, next_cursor: null });
      }
      case "POST channels": {
        need(user);
        if (parts[2] === "rekey") {
          world.keySequence[parts[1]] += 1;
          note(user, "channel.rekey", parts[1]);
          return respond(202, commandFor("rekey", `key ${world.keySequence[parts[1]]} is in use`));
        }
        if (!/^[a-z0-9-]{1,64}$/.test(body.name ?? "")) throw new Refusal(422, "That is no name for a channel", "Small letters, digits and hyphens, at most 64.");
        world.heads[body.name] = 0;
        world.keySequence[body.name] = 1;
        world.authentications[body.name] = body.packet_authentication ?? "none";
        world.fecs[body.name] = body.fec ?? "adaptive";
        world.deadlines[body.name] = body.deadline_ms ?? null;
        return respond(201, { ...world.channelNow(body.name), created_ms: world.now(), private: Boolean(body.private), packet_authentication: world.authentications[body.name], fec: world.fecs[body.name], deadline_ms: world.deadlines[body.name], groups: [], key_sequence: 1, feeds: 0, first: 1, rate_bps: null, keep_updates: null, keep_ms: null, flow: null, origin: "managed", published_by: null });
      }
      case "GET relays":
        return respond(200, { items: world.relays, next_cursor: null });
      case "GET feeds": {
        if (parts[1] === "export") return exportRows(world.feeds.filter((one) => !query.get("channel") || one.channel === query.get("channel")), query, respond);
        if (parts[2] !== "history") return respond(200, { items: world.feeds, next_cursor: null });
        const feed = find(world.feeds, parts[1], "feed");
        const events = [...(feed.seen ? [feed.seen] : []), { at_ms: feed.since_ms - 400_000, state: "ok", detail: "it could be read again", excerpt: null }];
        const hours = Array.from({ length: 24 }, (_, at) => ({ at_ms: Math.floor(world.now() / 3_600_000) * 3_600_000 - (23 - at) * 3_600_000, polls: 240, ok: 30 + ((at * 7) % 20), not_modified: 190, failed: feed.state === "error" && at > 22 ? 6 : 0, challenged: feed.state === "challenged" && at > 20 ? 12 : 0, entries: 30 + ((at * 13) % 40) }));
        return respond(200, { events, hours });
      }
      case "POST feeds": {
        need(user);
        if (parts[1] === "test") {
          if (/127\.|localhost|169\.254|\[::1\]|10\.|192\.168/.test(body.url)) throw new Refusal(422, "That address is not fetched", "It leads to a private network. Feeds are only fetched from public addresses.");
          if (!/^https?:\/\//.test(body.url)) throw new Refusal(422, "That is no address of a feed", "It has to begin with https:// or http://.");
          return respond(200, { state: "ok", title: "A feed that was tried", entry_count: 25, detail: "Atom", took_ms: 184, excerpt: null, entries: Array.from({ length: 10 }, (_, at) => ({ title: `Entry ${at + 1}`, link: at === 3 ? "javascript:alert(1)" : `https://example.org/${at}`, published_ms: world.now() - at * 3_000_000 })) });
        }
        if (parts[2] === "refresh") return respond(202, commandFor("refresh-feed", "polled: nothing has changed"));
        if (!/^https?:\/\//.test(body.url ?? "")) throw new Refusal(422, "That is no address of a feed", "It has to begin with https:// or http://.");
        const feed = { id: `f${(world.nextId += 1)}`, channel: body.channel, url: body.url, title: body.title ?? null, state: "pending", detail: "", since_ms: world.now(), last_poll_ms: null, next_poll_ms: world.now() + 1000, interval_ms: 15_000, min_interval_ms: body.min_interval_ms ?? null, max_interval_ms: null, local: false, paused: false, moved_to: null, origin: "managed", seen: null };
        world.feeds.push(feed);
        note(user, "feed.add", feed.url);
        return respond(201, feed);
      }
      case "PATCH feeds": {
        need(user);
        const feed = find(world.feeds, parts[1], "feed");
        if ("paused" in body) Object.assign(feed, { paused: body.paused, state: body.paused ? "paused" : "pending", next_poll_ms: body.paused ? null : world.now() + 1000, detail: body.paused ? "paused by an operator" : "" });
        if ("title" in body) feed.title = body.title;
        note(user, "feed.edit", feed.url, body);
        return respond(200, feed);
      }
      case "DELETE feeds":
        need(user);
        world.feeds = world.feeds.filter((feed) => feed !== find(world.feeds, parts[1], "feed"));
        return respond(204, null);
      case "GET updates": {
        // Numbers of updates are their channel's own.
        if (!parts[1] && !query.get("channel") && world.overview().channels.length > 1) throw new Refusal(400, "The request cannot be understood", "there are several channels: name one");
        if (parts[1] === "export") return exportRows(world.updates.filter((one) => one.channel === query.get("channel")), query, respond);
        if (!parts[1]) return respond(200, paged(world.updates.filter((one) => !query.get("channel") || one.channel === query.get("channel")), query));
        const update = world.updates.find((one) => one.channel === parts[1] && String(one.seq) === parts[2]);
        if (!update) throw new Refusal(404, "There is no such update", `Channel ${parts[1]} does not hold update ${parts[2]} any more.`);
        const hostile = `<h2>Hello</h2><script>parent.__hit=1</script><img src=x onerror="parent.__hit=1"><a href="javascript:parent.__hit=1">x</a><form action="//evil.example"><input name=a></form><style>*{display:none}</style><iframe srcdoc="<script>parent.__hit=1</script>"></iframe>`;
        return respond(200, {
          ...update, link: world.hostile ? "javascript:alert(1)" : `https://lore.kernel.org/all/${update.seq}/`, authors: [world.hostile ? `<b>${hostile}` : "Ada Example <ada@example.org>"], updated_ms: update.published_ms,
          content: `${world.hostile ? hostile : ""}<p>This series makes the folio's mapping stay valid while it is split, so that readers need no second look.</p><p>Changes since v2:</p><ul><li>keep the lock order that <code>filemap</code> expects</li><li>say in the comment why</li></ul><pre>--- a/mm/huge_memory.c\n+++ b/mm/huge_memory.c\n@@ -3312,7 +3312,9 @@ static int __folio_split(struct folio *folio)\n-\tmapping = NULL;\n+\tmapping = folio->mapping;\n</pre><blockquote>Could this be two patches?</blockquote><p>I think one is easier to follow. <a href="https://lore.kernel.org/">The thread</a>.</p>`,
          content_type: "html", content_cut: false, summary: null,
        });
      }
      case "GET enrolments":
        return respond(200, { items: world.enrolments, next_cursor: null });
      case "POST enrolments": {
        need(user);
        const token = (world.nextId += 1);
        world.enrolments.unshift({ token_id: token, label: body.label ?? "", channels: body.channels ?? [], created_ms: world.now(), expires_ms: body.expires_ms ?? null, limit: body.limit ?? null, used: 0, public: false, revoked_ms: null });
        const address = world.publicAddress ?? "localhost:4433";
        const link = `flexfeed://QmFzZTY0VG9rZW4${token}@${address}?pin=sha256:4Jm0Z3b9kPq7w1Xc5nT8vR2yL6sD0fG-hK_jA3eUiO4&${body.channels.map((name) => `ch=${name}`).join("&")}`;
        return respond(201, {
          token_id: token, link, warning: world.publicAddress ? null : "PUBLIC_ADDRESS is not set: the link names an address that receivers elsewhere cannot reach",
          docker_run: `docker run -d --name flexfeed --restart unless-stopped -p 127.0.0.1:8080:8080 -v flexfeed:/data ghcr.io/flexfeed/receiver '${link}'`,
          helm_install: `helm install flexfeed oci://ghcr.io/flexfeed/charts/receiver --set-string link='${link}'`,
          binary: `flexfeed-receiver '${link}' --data ~/feeds`,
        });
      }
      case "DELETE enrolments":
        need(user);
        world.enrolments = world.enrolments.filter((one) => String(one.token_id) !== parts[1]);
        return respond(204, null);
      case "GET users":
        need(user);
        return respond(200, { items: world.users.map(({ password: _password, ...rest }) => ({ ...rest, is_self: rest.name === user.name })), next_cursor: null });
      case "POST users":
        need(user);
        if (String(body.password).length < 10) throw new Refusal(422, "The password is too short", "Take at least 10 characters.");
        if (world.users.some((one) => one.name === body.name)) throw new Refusal(409, "That name is taken", `There is a user ${body.name} already.`);
        world.users.push({ id: (world.nextId += 1), name: body.name, password: body.password, role: body.role, created_ms: world.now(), disabled_ms: null });
        return respond(201, { ...world.users.at(-1), password: undefined, is_self: false });
      case "PATCH users": {
        need(user);
        const one = find(world.users, parts[1], "user");
        if (body.role) one.role = body.role;
        if (body.password) one.password = body.password;
        if (typeof body.disabled === "boolean") one.disabled_ms = body.disabled ? world.now() : null;
        return respond(200, { ...one, password: undefined, is_self: one === user });
      }
      case "DELETE users":
        need(user);
        if (find(world.users, parts[1], "user") === user) throw new Refusal(409, "You cannot remove yourself", "Let another operator do it.");
        world.users = world.users.filter((one) => String(one.id) !== parts[1]);
        return respond(204, null);
      case "GET api-tokens":
        need(user);
        return respond(200, { items: world.tokens, next_cursor: null });
      case "POST api-tokens":
        need(user);
        world.tokens.unshift({ id: (world.nextId += 1), name: body.name, user: user.name, scopes: body.scopes, created_ms: world.now(), expires_ms: body.expires_ms ?? null, seen_ms: null, revoked_ms: null });
        return respond(201, { ...world.tokens[0], token: `fft_${randomBytes(24).toString("base64url")}` });
      case "DELETE api-tokens":
        need(user);
        find(world.tokens, parts[1], "token").revoked_ms = world.now();
        return respond(204, null);
      case "GET audit":
        need(user);
        if (parts[1] === "export") return exportRows(world.audit, query, respond);
        return respond(200, paged(world.audit.filter((one) => ["actor", "action"].every((key) => !query.get(key) || one[key] === query.get(key))), query));
      case "POST source":
        need(user);
        world.draining = true;
        return respond(202, commandFor("drain", "receivers are being sent away"));
      case "GET commands": {
        const command = world.commands.get(Number(parts[1]));
        if (!command) throw new Refusal(404, "There is no such command", "It is not known.");
        return respond(200, command);
      }
      default:
        throw new Refusal(404, "There is nothing here", `${url.pathname} is not part of this API.`);
    }
  }

  function signIn(user, respond) {
    const key = randomBytes(16).toString("hex");
    const session = { user, csrf: randomBytes(12).toString("hex") };
    sessions.set(key, session);
    return respond(200, { user: { name: user.name, role: user.role }, csrf: session.csrf }, { "set-cookie": `flexfeed=${key}; Path=/; HttpOnly; SameSite=Lax` });
  }

  function exportRows(rows, query, respond) {
    if (query.get("format") === "json") return respond(200, rows);
    const columns = ["id", "name", "label", "rung", "cause", "behind_updates", "at_ms", "receiver", "channel", "from", "to"].filter((key) => rows[0] && key in rows[0]);
    const text = [columns.join(","), ...rows.map((row) => columns.map((key) => csvCell(row[key])).join(","))].join("\r\n");
    return respond(200, text, { "content-type": "text/csv; charset=utf-8", "content-disposition": "attachment; filename=export.csv" });
  }

  // The stream: a snapshot, then what changes. As in the console, a returning watcher continues after the last
  // event that it had, and is sent no event if there was none since.
  function topicOf(query) {
    const key = query.toString();
    let topic = topics.get(key);
    if (!topic) {
      topic = { number: (topicNumber += 1), idleSince: 0, query, last: 0, ring: [], clients: new Set(), shown: null };
      topic.shown = pageOf(topic);
      topics.set(key, topic);
    }
    return topic;
  }

  function pageOf({ query }) {
    if (query.get("receiver")) {
      const one = world.byId.get(query.get("receiver"));
      const items = one ? [one] : [];
      return { items, next_cursor: null, total: world.receivers.length, filtered: items.length, unknown_since_ms: null };
    }
    return query.get("limit") && query.get("limit") !== "0" ? receiverPage(world, query, 100) : null;
  }

  const eventOf = (topic, type, data) => `id: ${run}-${topic.number}-${topic.last}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`;

  function stream(request, url, response) {
    if (!userOf(request)) throw new Refusal(401, "You are not signed in", "Sign in to go on.");
    refuseUnknown(url.searchParams, QUERIES.events);
    response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store" });
    response.write("retry: 2000\n\n");
    const topic = topicOf(url.searchParams);
    const [, number, event] = /^(\d+)-(\d+)$/.exec((request.headers["last-event-id"] ?? "").replace(`${run}-`, "")) ?? [];
    const missed = Number(number) === topic.number ? topic.last - Number(event) : Infinity;
    if (missed <= topic.ring.length) for (const text of topic.ring.slice(topic.ring.length - missed)) response.write(text);
    else response.write(eventOf(topic, "snapshot", { overview: world.overview(), receivers: pageOf(topic) }));
    const client = { response, topic };
    clients.add(client);
    topic.clients.add(client);
    request.on("close", () => {
      clients.delete(client);
      topic.clients.delete(client);
      topic.idleSince = Date.now();
    });
  }

  function live({ changed, moves }) {
    const overview = world.overview();
    const isOther = likeness(overview) !== overviewSent;
    overviewSent = likeness(overview);
    const feeds = world.feeds.filter((feed) => feedsSent.get(feed.id) !== JSON.stringify(feed));
    for (const feed of feeds) feedsSent.set(feed.id, JSON.stringify(feed));
    const feedsGone = [...feedsSent.keys()].filter((id) => !world.feeds.some((feed) => feed.id === id));
    for (const id of feedsGone) feedsSent.delete(id);
    const ids = new Set(changed.map((one) => one.id));
    for (const [key, topic] of topics) {
      if (!topic.clients.size && Date.now() - topic.idleSince > IDLE_MS) {
        topics.delete(key);
        continue;
      }
      const { shown } = topic;
      const now = pageOf(topic);
      topic.shown = now;
      const before = shown?.items.map((one) => one.id) ?? [];
      const present = now?.items.map((one) => one.id) ?? [];
      const receivers = (now?.items ?? []).filter((one) => ids.has(one.id) || !before.includes(one.id));
      const gone = before.filter((id) => !present.includes(id));
      const order = before.join() === present.join() ? null : present;
      const counts = shown?.total !== now?.total || shown?.filtered !== now?.filtered;
      if (!isOther && !moves.length && !feeds.length && !feedsGone.length && !receivers.length && !gone.length && !order && !counts) continue;
      const delta = { overview: isOther ? overview : null, moves, feeds, feeds_gone: feedsGone, relays: null, order, receivers, gone, total: now?.total ?? null, filtered: now?.filtered ?? null };
      topic.last += 1;
      const text = eventOf(topic, "delta", delta);
      topic.ring.push(text);
      if (topic.ring.length > RING) topic.ring.shift();
      for (const client of topic.clients) client.response.write(text);
    }
  }

  async function file(request, url, response) {
    const plain = path.posix.normalize(url.pathname);
    const wanted = [path.join(dist, plain), path.join(dist, "index.html")];
    for (const name of wanted) {
      const found = await stat(name).catch(() => null);
      if (!found?.isFile()) continue;
      const takes = request.headers["accept-encoding"] ?? "";
      const coding = /\bbr\b/.test(takes) ? ["br", ".br"] : /\bgzip\b/.test(takes) ? ["gzip", ".gz"] : null;
      const packed = coding && (await readFile(name + coding[1]).catch(() => null));
      response.writeHead(200, {
        "content-type": TYPES[path.extname(name)] ?? "application/octet-stream",
        "cache-control": plain.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache",
        ...(policy ? { "content-security-policy": POLICY } : {}), "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", vary: "accept-encoding",
        ...(packed ? { "content-encoding": coding[0] } : {}),
      });
      return response.end(packed ?? (await readFile(name)));
    }
    response.writeHead(404).end();
  }

  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const respond = (status, body, headers = {}) => {
      const isText = typeof body === "string";
      response.writeHead(status, { "content-type": isText ? "text/plain" : "application/json", "cache-control": "no-store", ...headers });
      response.end(body === null ? undefined : isText ? body : JSON.stringify(body));
    };
    requests.push({ method: request.method, path: url.pathname + url.search, headers: request.headers, at: Date.now() });
    if (requests.length > 2000) requests.shift();
    try {
      if (url.pathname.startsWith("/api/")) {
        if (refusing) return request.socket.destroy();
        if (url.pathname === "/api/v1/events") return stream(request, url, response);
        return await api(request, url, respond);
      }
      if (dist) return await file(request, url, response);
      respond(404, "only the API is here");
    } catch (error) {
      const refusal = error instanceof Refusal ? error : new Refusal(500, "The stand-in has failed", String(error?.stack ?? error));
      respond(refusal.status, { type: "about:blank", status: refusal.status, title: refusal.title, detail: refusal.detail, ...refusal.more }, { "content-type": "application/problem+json" });
    }
  });

  const ticking = setInterval(() => live(world.tick()), tickMs);
  const beating = setInterval(() => {
    for (const client of clients) client.response.write(": alive\n\n");
  }, 15_000);
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const { port: taken } = server.address();

  return {
    world,
    url: `http://127.0.0.1:${taken}`,
    port: taken,
    /** How many streams are open. */
    streams: () => clients.size,
    requests,
    live,
    /** Cuts every open stream. */
    dropStreams() {
      for (const client of clients) client.response.destroy();
      clients.clear();
      for (const topic of topics.values()) topic.clients.clear();
    },
    /** Cuts every open stream and knows none of them any more, as after a restart. */
    restart() {
      topics.clear();
      for (const client of clients) client.response.destroy();
      clients.clear();
    },
    /** Answers no call any more, or again. */
    refuse(value) {
      refusing = value;
    },
    endSessions() {
      sessions.clear();
    },
    close() {
      clearInterval(ticking);
      clearInterval(beating);
      for (const client of clients) client.response.destroy();
      server.closeAllConnections?.();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}
