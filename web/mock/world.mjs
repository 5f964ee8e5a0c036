// A made-up installation, the same for the same seed: receivers that move between rungs, feeds,
// relays, updates. It only stands in for the console's API while the page is made and tested.

/** A small generator of numbers in [0, 1). */
export function randomOf(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const SITES = ["ams", "fra", "lon", "nyc", "sfo", "sin", "tyo", "syd", "gru", "jnb"];
const KINDS = ["edge", "desk", "ci", "mirror", "lab"];
const SOFTWARE = ["flexfeed-receiver/0.6.0", "flexfeed-receiver/0.6.0", "flexfeed-receiver/0.6.0", "flexfeed-receiver/0.5.2", "flexfeed-receiver/0.4.1"];
const WORST = ["multicast", "amt", "replicated", "unicast", "offline"];
const TITLES = [
  "[PATCH v3 2/7] mm: keep the folio's mapping while it is split",
  "Re: [PATCH net-next] udp: do not wake all readers for one packet",
  "[GIT PULL] arm64 fixes for the next -rc",
  "[RFC PATCH 00/12] io_uring: registered buffers for multicast sockets",
  "Re: regression: suspend on Framework 13 since 7.1-rc2",
  "[PATCH] docs: say what a flow label is",
  "[syzbot] KASAN: use-after-free Read in nft_set_walk",
  "Re: [PATCH v9 01/31] rust: pin-init for platform devices",
];

export const HOSTILE = {
  script: `<script>window.__hit=1</script><img src=x onerror="window.__hit=1">"'><svg onload=window.__hit=1>`,
  rtl: "\u202eمرحبا بالعالم \u2066تغذية\u2069 — שלום עולם\u202c",
  emoji: "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 zalgo: h̸̡̪̯ͨ͊̽̅̾̎e̡ͭ͡l̷̨ͯ̾ͫlo",
  long: "A very long title without any end ".repeat(60).slice(0, 2000),
  unbroken: "x".repeat(2000),
};

export class World {
  constructor({ receivers = 5000, seed = 7, hostile = false, many = false, now = () => Date.now(), empty = receivers === 0 } = {}) {
    this.random = randomOf(seed);
    this.now = now;
    this.hostile = hostile;
    this.startedMs = now() - 9 * 86_400_000;
    this.overloads = [];
    this.nextId = 100_000;
    this.updatesPerTick = 0.22;
    this.movesPerTick = Math.max(receivers * 0.0004, receivers ? 0.03 : 0);
    this.changesPerTick = 0.2;
    this.heads = { lore: empty ? 0 : 481_204, news: empty ? 0 : 9_114 };
    this.keySequence = { lore: 41, news: 7 };
    this.authentications = {};
    this.fecs = {};
    this.deadlines = {};
    this.receivers = [];
    this.removed = [];
    this.byId = new Map();
    this.moves = [];
    this.sessions = new Map();
    this.updates = [];
    this.feeds = [];
    this.relays = [];
    this.enrolments = [];
    this.audit = [];
    this.tokens = [];
    this.commands = new Map();
    this.draining = false;
    this.publicAddress = empty ? null : "feeds.example.org:4433";
    this.users = [
      { id: 1, name: "ada", password: "correct horse", role: "operator", created_ms: this.startedMs, disabled_ms: null },
      { id: 2, name: "vera", password: "battery staple", role: "viewer", created_ms: this.startedMs + 7_200_000, disabled_ms: null },
    ];
    for (let at = 0; at < receivers; at += 1) this.addReceiver(at, receivers);
    if (!empty) this.fill();
    if (many) this.fillMany();
  }

  pick(list) {
    return list[Math.floor(this.random() * list.length)];
  }

  addReceiver(at, all) {
    const r = this.random;
    const site = this.pick(SITES);
    const kind = this.pick(KINDS);
    const roll = r();
    const spread = all < 10 ? ["multicast", "amt", "unicast"][at % 3] : null;
    const rung = spread ?? (roll < 0.86 ? "multicast" : roll < 0.925 ? "amt" : roll < 0.965 ? "replicated" : roll < 0.985 ? "unicast" : "offline");
    const id = Array.from({ length: 32 }, () => Math.floor(r() * 16).toString(16)).join("");
    const since = this.now() - Math.floor(r() ** 3 * 5 * 86_400_000) - 20_000;
    const channels = ["lore", ...(r() < 0.3 ? ["news"] : [])];
    const number = String(at + 1).padStart(String(all).length, "0");
    const hostile = this.hostile ? Object.values(HOSTILE)[at % 5] : null;
    const receiver = {
      id,
      name: hostile ?? `${site}-${kind}-${number}`,
      label: hostile ?? (r() < 0.04 ? `${kind === "desk" ? "Front desk" : "Rack"} ${1 + Math.floor(r() * 40)}, ${site.toUpperCase()}` : null),
      tags: hostile ? [hostile.slice(0, 64), "rtl:مرحبا"] : [`site:${site}`, ...(r() < 0.5 ? [`ring:${this.pick(["a", "b", "canary"])}`] : [])],
      software: hostile ?? this.pick(SOFTWARE),
      address: r() < 0.3 ? `[2001:db8:${Math.floor(r() * 65535).toString(16)}::${(at + 2).toString(16)}]:${40_000 + (at % 20_000)}` : `198.51.${100 + (at % 3)}.${1 + (at % 250)}:${40_000 + (at % 20_000)}`,
      connected: rung !== "offline",
      revoked: false,
      held: false,
      enrolled_ms: this.startedMs + Math.floor(r() * 6 * 86_400_000),
      seen_ms: since - Math.floor(r() ** 2 * 3 * 86_400_000),
      rtt_ms: rung === "offline" ? null : Math.round((2 + r() * (site === "syd" || site === "sin" ? 280 : 60)) * 10) / 10,
      rung,
      cause: null,
      since_ms: since,
      behind_updates: 0,
      forgeries: null,
      channels: channels.map((channel) => ({
        channel,
        rung,
        since_ms: since,
        cause: rung === "offline" ? "left" : rung === "unicast" ? this.pick(["heartbeat-lost", "ack-timeout", "network-changed"]) : "joined",
        cursor: this.heads[channel] - (rung === "offline" ? Math.floor(r() * 900) : 0),
        behind_updates: 0,
        key_sequence: this.keySequence[channel],
        legs: [],
        forgeries: null,
        updated_ms: this.now(),
      })),
    };
    this.receivers.push(receiver);
    this.byId.set(id, receiver);
    this.settle(receiver);
    return receiver;
  }

  /** A receiver reports forged packets of a channel, and moves to unicast because of them. */
  forge(receiver, channel, at = this.now()) {
    const own = receiver.channels.find((one) => one.channel === channel);
    const with_ = (known) => (known ? { ...known, last_ms: at, reports: known.reports + 1 } : { first_ms: at, last_ms: at, reports: 1 });
    own.forgeries = with_(own.forgeries);
    receiver.forgeries = with_(receiver.forgeries);
    return this.move(receiver, "unicast", "forged");
  }

  /** Reports of forged packets by channel. */
  forgeries() {
    const all = new Map();
    for (const { channel, forgeries } of this.receivers.flatMap((one) => one.channels)) {
      if (!forgeries) continue;
      const known = all.get(channel) ?? { channel, receivers: 0, first_ms: Infinity, last_ms: 0, reports: 0 };
      all.set(channel, { channel, receivers: known.receivers + 1, first_ms: Math.min(known.first_ms, forgeries.first_ms), last_ms: Math.max(known.last_ms, forgeries.last_ms), reports: known.reports + forgeries.reports });
    }
    return [...all.values()].sort((a, b) => a.channel.localeCompare(b.channel));
  }

  /** Derives what follows from the channels. */
  settle(receiver) {
    let behind = 0;
    let worst = receiver.channels[0];
    for (const channel of receiver.channels) {
      channel.behind_updates = Math.max(0, this.heads[channel.channel] - channel.cursor);
      behind = Math.max(behind, channel.behind_updates);
      if (WORST.indexOf(channel.rung) > WORST.indexOf(worst.rung)) worst = channel;
    }
    receiver.behind_updates = behind;
    receiver.rung = worst.rung;
    receiver.since_ms = worst.since_ms;
    receiver.cause = worst.cause;
    receiver.connected = worst.rung !== "offline";
  }

  fill() {
    const now = this.now();
    const evil = this.hostile;
    const feed = (more) => ({
      channel: "lore", title: null, state: "not-modified", detail: "", since_ms: now - 5 * 86_400_000, last_poll_ms: now - 9000, next_poll_ms: now + 6000,
      interval_ms: 15_000, min_interval_ms: null, max_interval_ms: null, local: false, paused: false, moved_to: null, origin: "managed", seen: null, ...more,
    });
    this.feeds = [
      feed({ id: "f1", url: "https://lore.kernel.org/all/new.atom", title: evil ? HOSTILE.script : "All of lore.kernel.org", origin: "flags" }),
      feed({ id: "f2", url: "https://blog.example.org/atom.xml", title: evil ? HOSTILE.rtl : "The example blog", channel: "news", state: "ok", interval_ms: 300_000, min_interval_ms: 60_000, max_interval_ms: 3_600_000 }),
      feed({
        id: "f3", url: "https://forum.example.net/latest.rss", title: "Forum, latest", channel: "news", state: "challenged", since_ms: now - 3 * 3_600_000,
        detail: "the server answered 403 with a page that asks the visitor to prove that a person is there",
        seen: { at_ms: now - 3 * 3_600_000, state: "challenged", detail: "403, text/html, 18 kB", excerpt: evil ? HOSTILE.script : "Just a moment…\n\nVerifying that you are human. This may take a few seconds.\nforum.example.net needs to review the security of your connection before proceeding." },
      }),
      feed({ id: "f4", url: "https://status.example.com/history.json", title: "Status page", channel: "news", state: "error", detail: "connecting took longer than 10 s", since_ms: now - 1_260_000, last_poll_ms: now - 61_000, next_poll_ms: now + 240_000 }),
      feed({ id: "f5", url: "https://podcast.example.org/feed.xml?quality=high", title: null, channel: "news", state: "paused", paused: true, detail: "paused by an operator", last_poll_ms: now - 5 * 86_400_000, next_poll_ms: null }),
    ];
    this.relays = [
      { address: "relay-eu.example.org:2268", asked: "192.0.2.10:2268", healthy: true, since_ms: now - 8 * 86_400_000, answer_ms: 11.4, detail: "", at_ms: now },
      { address: "relay-us.example.org:2268", asked: "192.0.2.77:2268", healthy: true, since_ms: now - 2 * 86_400_000, answer_ms: 88.1, detail: "", at_ms: now },
      { address: "relay-ap.example.org:2268", asked: "203.0.113.9:2268", healthy: false, since_ms: now - 420_000, answer_ms: null, detail: evil ? HOSTILE.script : "no answer to 3 questions in a row; not announced to receivers", at_ms: now },
    ];
    for (let at = 0; at < 400; at += 1) this.publish(now - (400 - at) * 41_000 - Math.floor(this.random() * 20_000), true);
    for (const receiver of this.receivers) {
      for (const channel of receiver.channels) channel.cursor = this.heads[channel.channel] - (receiver.connected ? 0 : Math.floor(this.random() * 390));
      this.settle(receiver);
    }
    const moves = Math.min(600, 20 + this.receivers.length);
    const falls = ["heartbeat-lost", "ack-timeout", "network-changed", "too-slow"];
    for (const receiver of this.receivers) {
      if (receiver.rung === "multicast" || receiver.rung === "amt") continue;
      this.moves.push({ id: (this.nextId += 1), receiver: receiver.id, name: receiver.label ?? receiver.name, channel: receiver.channels[0].channel, at_ms: receiver.since_ms, from: "multicast", to: receiver.rung, cause: receiver.cause });
    }
    for (let at = 0; this.receivers.length && at < moves; at += 1) {
      // A fall and the return from it, or the climb that began the present stand.
      const receiver = this.pick(this.receivers);
      if (receiver.rung !== "multicast" && receiver.rung !== "amt") continue;
      const fell = receiver.since_ms - Math.floor((0.01 + this.random() ** 2) * 40_000_000);
      const row = (more) => this.moves.push({ id: (this.nextId += 1), receiver: receiver.id, name: receiver.label ?? receiver.name, channel: receiver.channels[0].channel, ...more });
      const back = Math.min(receiver.since_ms - 1000, fell + 700 + Math.floor(this.random() * 90_000));
      row({ at_ms: fell, from: receiver.rung, to: "unicast", cause: this.pick(falls) });
      row({ at_ms: back, from: "unicast", to: receiver.rung, cause: "joined" });
    }
    this.moves.sort((a, b) => b.at_ms - a.at_ms || b.id - a.id);
    this.enrolments = [
      { token_id: 14, label: evil ? HOSTILE.script : "office", channels: ["lore"], created_ms: now - 6 * 86_400_000, expires_ms: now + 86_400_000, limit: 20, used: 17, public: false, revoked_ms: null },
      { token_id: 15, label: "mirrors", channels: ["lore", "news"], created_ms: now - 5 * 86_400_000, expires_ms: null, limit: null, used: this.receivers.length, public: false, revoked_ms: null },
    ];
    this.tokens = [
      { id: 1, name: evil ? HOSTILE.rtl : "grafana", user: "ada", scopes: ["read"], created_ms: now - 5 * 86_400_000, expires_ms: now + 60 * 86_400_000, seen_ms: now - 12_000, revoked_ms: null },
      { id: 2, name: "old script", user: "ada", scopes: ["read", "operate"], created_ms: now - 8 * 86_400_000, expires_ms: null, seen_ms: now - 7 * 86_400_000, revoked_ms: now - 6 * 86_400_000 },
    ];
    const actions = ["session.create", "feed.edit", "enrolment.create", "receiver.edit", "channel.rekey", "session.create"];
    const targets = ["ada", "https://podcast.example.org/feed.xml?quality=high", "14", this.receivers[0]?.id ?? "", "lore", "root"];
    const details = [{}, { paused: true }, { label: "office", channels: ["lore"], limit: 20 }, { label: "Front desk" }, {}, {}];
    for (let at = 0; at < 90; at += 1) {
      const action = actions[at % actions.length];
      this.audit.push({
        id: 90 - at, at_ms: now - at * 3_000_000 - 60_000, actor: at % 6 === 5 ? "root" : "ada", via: at % 7 === 3 ? "token 1" : "session",
        action, target: evil ? HOSTILE.script : targets[at % 6], detail: details[at % 6],
        outcome: at % 6 === 5 ? "refused" : "ok", address: "192.0.2.31",
      });
    }
  }

  /** As many of everything as a large house has. */
  fillMany() {
    const now = this.now();
    const states = ["ok", "not-modified", "not-modified", "not-modified", "challenged", "error", "paused", "pending"];
    for (let at = 0; at < 2000; at += 1) {
      const state = states[at % 50 < 46 ? at % 4 : 4 + (at % 4)];
      this.feeds.push({
        ...this.feeds[1], id: `m${at}`, url: `https://site-${at}.example.org/feed.xml`, title: `Site ${at}`, channel: at % 3 ? "lore" : "news", state, detail: state === "error" ? "connecting took longer than 10 s" : "",
        paused: state === "paused", next_poll_ms: now + 3_600_000, seen: null,
      });
    }
    for (let at = 0; at < 500; at += 1) this.tokens.push({ ...this.tokens[0], id: 1000 + at, name: `script ${at}` });
    for (let at = 0; at < 300; at += 1) this.users.push({ id: 1000 + at, name: `person-${at}`, password: "", role: at % 9 ? "viewer" : "operator", created_ms: now - at * 3_600_000, disabled_ms: null });
    for (let at = 0; at < 300; at += 1) this.enrolments.push({ ...this.enrolments[0], token_id: 1000 + at, label: `rack ${at}` });
    for (let at = 0; at < 60; at += 1) this.relays.push({ ...this.relays[0], address: `relay-${at}.example.org:2268` });
    for (let at = 0; at < 80; at += 1) {
      this.heads[`list-${at}`] = 100 + at;
      this.keySequence[`list-${at}`] = 1;
    }
  }

  expected(channel) {
    let all = 0;
    for (const receiver of this.receivers) if (receiver.connected && receiver.channels.some((one) => one.channel === channel)) all += 1;
    return all;
  }

  publish(at, done = false) {
    const channel = this.random() < 0.9 ? "lore" : "news";
    this.heads[channel] += 1;
    const seq = this.heads[channel];
    const expected = this.expected(channel);
    const evil = this.hostile ? Object.values(HOSTILE)[seq % 5] : null;
    const title = evil ?? this.pick(TITLES);
    this.updates.unshift({
      channel, seq, entry_id: `urn:uuid:${seq.toString(16).padStart(8, "0")}-5b1e-4c0a-9d55-0242ac120002`, feed_url: this.feeds[0]?.url ?? "https://lore.kernel.org/all/new.atom", kind: this.random() < 0.12 ? "updated" : "created", published_ms: at,
      bytes: 900 + Math.floor(this.random() ** 4 * 60_000), title,
      progress: { expected, delivered: done ? expected : 0, half_ms: done && expected ? 21 + Math.floor(this.random() * 9) : null, p99_ms: done && expected ? 118 + Math.floor(this.random() * 70) : null, all_ms: done && expected ? 240 + Math.floor(this.random() * 900) : null },
    });
    if (this.updates.length > 600) this.updates.pop();
    return { channel, seq };
  }

  moveRow(receiver, at, to = null, cause = null) {
    const channel = receiver.channels[0].channel;
    const other = to ?? (receiver.rung === "multicast" ? "unicast" : "multicast");
    const row = {
      id: (this.nextId += 1), at_ms: at, receiver: receiver.id, name: receiver.label ?? receiver.name, channel, from: to ? receiver.rung : other,
      to: to ?? receiver.rung, cause: cause ?? (receiver.rung === "multicast" ? "joined" : receiver.cause),
    };
    this.moves.unshift(row);
    if (this.moves.length > 5000) this.moves.pop();
    return row;
  }

  /** Moves a receiver, as the source would. */
  move(receiver, to, cause) {
    const row = this.moveRow(receiver, this.now(), to, cause);
    for (const channel of receiver.channels) {
      channel.rung = to;
      channel.cause = cause;
      channel.since_ms = this.now();
      channel.updated_ms = this.now();
    }
    this.settle(receiver);
    if (!receiver.connected) receiver.rtt_ms = null;
    else if (receiver.rtt_ms === null) Object.assign(receiver, { rtt_ms: 24, seen_ms: this.now() });
    return row;
  }

  /** One second. Returns what changed. */
  tick() {
    const changed = new Map();
    const moved = [];
    const now = this.now();
    const published = [];
    if (this.receivers.length || this.feeds.length) {
      let due = this.updatesPerTick;
      while (this.random() < due) {
        published.push(this.publish(now));
        due -= 1;
      }
    }
    for (const receiver of this.receivers) {
      let isOther = false;
      for (const channel of receiver.channels) {
        const head = this.heads[channel.channel];
        if (receiver.connected && channel.cursor < head) {
          // Most have it at once; a few of those on unicast lag.
          if (receiver.rung !== "unicast" || this.random() < 0.7) channel.cursor = head;
          isOther = true;
        } else if (!receiver.connected && published.length) isOther = true;
      }
      if (receiver.connected && this.random() < this.changesPerTick) {
        receiver.rtt_ms = Math.max(0.3, Math.round(receiver.rtt_ms * (0.95 + this.random() * 0.1) * 10) / 10);
        isOther = true;
      }
      if (isOther) {
        this.settle(receiver);
        changed.set(receiver.id, receiver);
      }
    }
    let moves = this.movesPerTick;
    while (this.receivers.length && this.random() < moves) {
      moves -= 1;
      const receiver = this.pick(this.receivers);
      if (receiver.held) continue;
      const [to, cause] = this.nextMove(receiver);
      moved.push(this.move(receiver, to, cause));
      changed.set(receiver.id, receiver);
    }
    for (const update of this.updates.slice(0, 12)) {
      const progress = update.progress;
      if (progress.delivered >= progress.expected) continue;
      const late = this.receivers.filter((one) => one.connected && one.channels.some((c) => c.channel === update.channel && c.cursor < update.seq)).length;
      progress.delivered = Math.max(0, progress.expected - late);
      progress.half_ms ??= 24;
      if (progress.delivered >= progress.expected * 0.99) progress.p99_ms ??= 118 + Math.floor(this.random() * 70);
      if (progress.delivered >= progress.expected) progress.all_ms = Math.max(progress.p99_ms, now - update.published_ms);
    }
    for (const feed of this.feeds) {
      if (feed.next_poll_ms === null || feed.next_poll_ms > now) continue;
      feed.last_poll_ms = now;
      feed.next_poll_ms = now + feed.interval_ms;
      if (feed.state === "ok" || feed.state === "not-modified") {
        feed.state = published.length ? "ok" : "not-modified";
      }
    }
    return { changed: [...changed.values()], moves: moved.reverse() };
  }

  nextMove(receiver) {
    const roll = this.random();
    if (receiver.rung === "multicast") {
      if (roll < 0.55) return ["unicast", "heartbeat-lost"];
      if (roll < 0.8) return ["unicast", "ack-timeout"];
      if (roll < 0.9) return ["unicast", "network-changed"];
      return ["offline", "left"];
    }
    if (receiver.rung === "unicast") return roll < 0.75 ? ["multicast", "joined"] : roll < 0.9 ? ["replicated", "joined"] : ["amt", "joined"];
    if (receiver.rung === "amt") return roll < 0.5 ? ["multicast", "joined"] : ["unicast", "relay-lost"];
    if (receiver.rung === "replicated") return roll < 0.8 ? ["multicast", "joined"] : ["unicast", "too-slow"];
    return ["unicast", "joined"];
  }

  /** A cut that hits many at once. */
  cut(tag) {
    const moves = [];
    for (const receiver of this.receivers) {
      if (receiver.rung === "multicast" && receiver.tags.includes(tag)) moves.push(this.move(receiver, "unicast", "heartbeat-lost"));
    }
    return moves.reverse();
  }

  counts(channel) {
    const counts = { total: 0, connected: 0, multicast: 0, amt: 0, replicated: 0, unicast: 0, offline: 0 };
    let behind = 0;
    let worst = 0;
    for (const receiver of this.receivers) {
      for (const one of receiver.channels) {
        if (channel && one.channel !== channel) continue;
        counts.total += 1;
        counts[one.rung] += 1;
        if (one.rung !== "offline") {
          counts.connected += 1;
          const lag = this.heads[one.channel] - one.cursor;
          if (lag > 0) behind += 1;
          if (lag > worst) worst = lag;
        }
      }
    }
    return { counts, behind, worst };
  }

  /** Over receivers and not over their subscriptions. */
  all() {
    const counts = { total: 0, connected: 0, multicast: 0, amt: 0, replicated: 0, unicast: 0, offline: 0, delivered: 0, behind: 0, worst_lag_updates: 0, worst_lag_ms: 0 };
    for (const receiver of this.receivers) {
      counts.total += 1;
      counts[receiver.rung] += 1;
      if (!receiver.connected) continue;
      counts.connected += 1;
      if (receiver.behind_updates > 0) counts.behind += 1;
      counts.worst_lag_updates = Math.max(counts.worst_lag_updates, receiver.behind_updates);
    }
    counts.delivered = counts.connected - counts.behind;
    counts.worst_lag_ms = counts.worst_lag_updates ? 400 + counts.worst_lag_updates * 700 : 0;
    return counts;
  }

  channelNow(name) {
    const { counts, behind, worst } = this.counts(name);
    const sent = this.heads[name] * (name === "lore" ? 7400 : 5200);
    const base = this.receivers.length ? sent : 0;
    return {
      name, head: this.heads[name], receivers: counts, delivered: counts.connected - behind, behind, worst_lag_updates: worst,
      worst_lag_ms: worst ? 400 + worst * 700 : 0, updates_per_min: this.receivers.length ? this.updatesPerTick * 60 * (name === "lore" ? 0.9 : 0.1) : 0,
      flow_bytes: base, copy_bytes: Math.round(base * counts.replicated), unicast_bytes: Math.round(base * counts.total * 0.018), repair_bytes: Math.round(base * counts.total * 0.0006), unicast_equivalent_bytes: base * counts.total, at_ms: this.now(),
    };
  }

  overview() {
    const channels = this.feeds.length || this.receivers.length ? Object.keys(this.heads) : ["lore"];
    const tally = { ok: 0, failing: 0, challenged: 0, paused: 0, pending: 0 };
    for (const feed of this.feeds) {
      if (feed.state === "ok" || feed.state === "not-modified") tally.ok += 1;
      else if (feed.state === "challenged") tally.challenged += 1;
      else if (feed.state === "paused") tally.paused += 1;
      else if (feed.state === "pending") tally.pending += 1;
      else tally.failing += 1;
    }
    const warnings = this.publicAddress
      ? []
      : [{ code: "public-address", text: "PUBLIC_ADDRESS is not set: enrolment links name an address that receivers elsewhere cannot reach." }];
    return {
      as_of_ms: this.now(),
      unknown_since_ms: null,
      database_ok: true,
      source: {
        state: "ok", holder: "source-1", software: "flexfeed-source/0.6.0", started_ms: this.startedMs, seen_ms: this.now(), public_address: this.publicAddress, listen: "[::]:4433", http: "127.0.0.1:8090",
        draining: this.draining, warnings, overloads: this.overloads,
      },
      receivers: this.all(),
      channels: channels.map((name) => this.channelNow(name)),
      forgeries: this.forgeries(),
      moves: this.moves.slice(0, 20),
      feeds: tally,
      relays: { healthy: this.relays.filter((relay) => relay.healthy).length, total: this.relays.length },
    };
  }

  /** Samples made up from the time alone, ending in what is true now. */
  samples(channel, from, to, points) {
    const steps = [1000, 10_000, 300_000, 3_600_000];
    const step = steps.find((one) => (to - from) / one <= points) ?? 3_600_000;
    const counts = channel ? this.counts(channel).counts : this.all();
    const total = counts.total;
    const list = [];
    const begin = Math.max(Math.ceil(from / step) * step, Math.ceil(this.startedMs / step) * step);
    for (let at = begin; at <= to && total; at += step) {
      const age = (this.now() - at) / 60_000;
      const wave = Math.sin(at / 5_000_000) * 0.004;
      const grown = Math.min(1, 0.55 + ((at - this.startedMs) / (this.now() - this.startedMs)) * 0.55);
      const all = Math.round(total * (age < 5 ? 1 : grown));
      const cut = age > 21 && age < 25 ? 0.11 * Math.min(1, (25 - age) / 0.6) : at % 90_000_000 < 2_400_000 && age > 300 ? 0.2 : 0;
      const part = (value, more) => Math.max(0, Math.round((value / total + more) * all));
      const amt = part(counts.amt, wave);
      const replicated = part(counts.replicated, -wave / 2);
      const offline = part(counts.offline, wave / 3);
      const unicast = part(counts.unicast, cut);
      const multicast = Math.max(0, all - amt - replicated - offline - unicast);
      const updates = Math.round((step / 1000) * this.updatesPerTick * (1 + Math.sin(at / 14_000_000) * 0.4));
      const flow = updates * 7400;
      list.push({
        at_ms: at, receivers: all, connected: all - offline, multicast, amt, replicated, unicast, offline, lag_updates: 0, lag_ms: 0, moves: 0, behind: Math.round(unicast * 0.02 + cut * all * 0.05), updates, flow_bytes: flow,
        copy_bytes: Math.round(flow * replicated), unicast_bytes: Math.round(flow * (unicast + offline * 0.2)), repair_bytes: Math.round(flow * all * 0.0006), unicast_equivalent_bytes: flow * all,
      });
    }
    return { channel: channel ?? null, step_ms: step, from_ms: from, to_ms: to, points: list };
  }

  sessionsOf(id) {
    if (!this.sessions.has(id)) {
      const receiver = this.byId.get(id) ?? this.removed.find((one) => one.id === id);
      const list = [];
      let end = receiver.connected ? null : receiver.seen_ms;
      let begin = receiver.connected ? receiver.seen_ms : end - 3_000_000 - Math.floor(this.random() * 80_000_000);
      for (let at = 0; at < 6; at += 1) {
        list.push({ id: `${9000 - at}`, receiver: id, began_ms: begin, ended_ms: end, end_cause: end === null ? null : this.pick(["idle-timeout", "left", "network-changed"]), address: receiver.address, software: receiver.software });
        end = begin - Math.floor(this.random() * 90_000) - 4000;
        begin = end - Math.floor(this.random() * 90_000_000) - 60_000;
      }
      this.sessions.set(id, list);
    }
    return this.sessions.get(id);
  }
}
