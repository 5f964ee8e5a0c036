// What the words of flexfeed mean, for labels and tooltips.
import type { Move, Overload, Rung } from "./api/types";
import { count, counted, duration } from "./format";

export interface RungWords {
  rung: Rung;
  /** 1 is the best; offline has none. */
  place: number;
  label: string;
  text: string;
}

export const RUNGS: readonly RungWords[] = [
  {
    rung: "multicast",
    place: 1,
    label: "multicast",
    text: "Rung 1. The receiver has joined the flow natively: the network copies the packets, the source sends them once for everybody.",
  },
  {
    rung: "amt",
    place: 2,
    label: "amt",
    text: "Rung 2. The receiver gets the flow's packets through a relay (AMT, RFC 7450), because its own network carries no multicast. They cost the source nothing more.",
  },
  {
    rung: "replicated",
    place: 3,
    label: "replicated",
    text: "Rung 3. The source copies the flow's encrypted packets to the receiver's own address. They are sealed once, and sent once for each such receiver.",
  },
  {
    rung: "unicast",
    place: 4,
    label: "unicast",
    text: "Rung 4. Each update goes on the receiver's own QUIC connection. It always works, and costs the source one copy and one encryption for each receiver.",
  },
  {
    rung: "offline",
    place: 5,
    label: "offline",
    text: "The receiver has no connection now. It is given everything it missed when it comes back.",
  },
];

const BY_RUNG = new Map(RUNGS.map((rung) => [rung.rung as string, rung]));

/** What is known of a rung; an unknown word explains itself by its name. */
export function rungWords(rung: string): RungWords {
  return BY_RUNG.get(rung) ?? { rung: "offline", place: 5, label: rung, text: "A rung that this page does not know." };
}

interface CauseWords {
  /** Follows "…: it". */
  short: string;
  text: string;
}

export const CAUSES: Readonly<Record<string, CauseWords>> = {
  joined: {
    short: "packets arrive that way",
    text: "The receiver has proved that the flow's packets reach it on this rung, so the source counts on it from the next packet on.",
  },
  "probe-timeout": {
    short: "the better rung brought nothing",
    text: "It tried a better rung and no packet came by it. It tries again later, at growing intervals.",
  },
  "ack-timeout": {
    short: "flow data went unacknowledged",
    text: "It left the flow's data unacknowledged for longer than the fall-back delay (150 ms, more on long paths). The source now sends it the missing part, and everything new, on its own connection.",
  },
  "heartbeat-lost": {
    short: "it missed three heartbeats",
    text: "The flow was idle and three of its heartbeats in a row did not arrive: the path for the flow is cut, although the receiver's own connection works.",
  },
  "relay-lost": {
    short: "its relay is gone",
    text: "The AMT relay that it used does not answer any more. The receiver looks for another one.",
  },
  "leg-lost": {
    short: "one of two paths is lost",
    text: "It takes the flow by two paths at once, multicast and a relay, and one of them fell silent. Nothing is missing: the other goes on, and the lost one is tried again.",
  },
  "loss-too-high": {
    short: "too many packets were lost",
    text: "It lost more of the flow's packets than the channel allows (--max-loss, 10 % by default), or most members did and the flow stopped. It may return after a back-off, when its own connection keeps up.",
  },
  "too-slow": {
    short: "it could not keep up",
    text: "It held the flow below the channel's minimum rate (--min-rate, by default half of what the other members could get), its window for the flow is too small, or it reads its unicast updates too slowly. It would have slowed down all others. It may return after a back-off, when its own connection keeps up.",
  },
  "flow-invalid": {
    short: "the flow was replaced, or packets were not valid",
    text: "It received too many invalid packets, or the flow was withdrawn or replaced.",
  },
  forged: {
    short: "somebody forges packets of the flow",
    text: "It received packets of the flow that the source did not send. It hands on nothing that the source did not sign; its own connection cannot be disturbed. It returns to the flow by itself after the attack, at growing intervals of up to half a minute.",
  },
  "rekey-missed": {
    short: "it did not confirm the new key",
    text: "The flow changed its key and the receiver had not confirmed the new one in time.",
  },
  ejected: { short: "an operator moved it", text: "It was taken off the flow by an operator, or was removed." },
  left: { short: "it left by itself", text: "The receiver left the flow: it was stopped, or multicast was disabled." },
  "network-changed": {
    short: "its network changed",
    text: "The receiver is in another network now, or packets could no longer be replicated to its address. It tries all rungs again.",
  },
};

/** Reasons for a rung that no move has. */
const REASONS: Record<string, CauseWords> = {
  unverified: {
    short: "does not verify signatures",
    text: "The source signs the updates of this channel, and the receiver's version does not verify signatures: it gets them on its own connection, without the flow. Update the receiver.",
  },
};

/** Returns the description of a cause; an unknown cause of a newer source is shown as it is. */
export function causeWords(cause: string | null | undefined): CauseWords {
  if (!cause) return { short: "no cause was given", text: "No cause was given." };
  return CAUSES[cause] ?? REASONS[cause] ?? { short: cause, text: "A cause that this page does not know." };
}

/** -1 for the better, 1 for the worse, 0 for neither. */
export function direction(from: string, to: string): -1 | 0 | 1 {
  const change = rungWords(to).place - rungWords(from).place;
  return change < 0 ? -1 : change > 0 ? 1 : 0;
}

/** The verb of a move, as in "A fell back from …". */
export function moveVerb(from: string, to: string): string {
  if (to === "offline") return "went offline from";
  if (from === "offline") return "came back, on";
  if (from === to) return "stays on";
  return direction(from, to) < 0 ? "climbed from" : "fell back from";
}

/** Moves of several receivers at once, for the same reason: one event and not hundreds. */
export interface MoveGroup {
  /** The newest of them. */
  move: Move;
  /** How many receivers: one that moved to and fro is one. */
  count: number;
  /** When the first of them happened. */
  since_ms: number;
}

/** Groups neighbours in a list that is sorted by time, newest first. */
export function groupMoves(moves: readonly Move[], withinMs = 3000): MoveGroup[] {
  const groups: MoveGroup[] = [];
  const open = new Map<string, { group: MoveGroup; who: Set<string> }>();
  for (const move of moves) {
    const key = `${move.channel}\n${move.from}\n${move.to}\n${move.cause}`;
    const found = open.get(key);
    if (found && found.group.since_ms - move.at_ms <= withinMs) {
      found.group.count = found.who.add(move.receiver).size;
      found.group.since_ms = move.at_ms;
    } else {
      const group = { move, count: 1, since_ms: move.at_ms };
      groups.push(group);
      open.set(key, { group, who: new Set([move.receiver]) });
    }
  }
  return groups;
}

const LATE: Readonly<Record<string, string>> = {
  engine: "packets and timers are handled late",
  publishing: "updates wait before they are sent",
  "receive-queue": "the kernel drops packets of receivers",
};

/** The beginning or the end of an overload. */
export interface LoadEvent {
  at_ms: number;
  began: boolean;
  text: string;
}

/** Returns both ends of each overload, in the order of the list. */
export function loadEvents(overloads: readonly Overload[]): LoadEvent[] {
  return overloads.flatMap((overload) => {
    const late = overload.late.map((what) => LATE[what] ?? what).join(", ");
    const began = { at_ms: overload.since_ms, began: true, text: `The source cannot keep up: ${late}` };
    if (overload.until_ms === null) return [began];
    const lasted = duration(overload.until_ms - overload.since_ms);
    return [{ at_ms: overload.until_ms, began: false, text: `The source keeps up again, after ${lasted}` }, began];
  });
}

export type Happening = { at_ms: number; group: MoveGroup } | { at_ms: number; load: LoadEvent };

/** Returns moves and overloads in one list, newest first. */
export function happenings(groups: readonly MoveGroup[], overloads: readonly Overload[]): Happening[] {
  const moves = groups.map((group) => ({ at_ms: group.move.at_ms, group }));
  const loads = loadEvents(overloads).map((load) => ({ at_ms: load.at_ms, load }));
  return [...moves, ...loads].sort((one, other) => other.at_ms - one.at_ms);
}

export interface FeedWords {
  label: string;
  tone: "good" | "bad" | "warn" | "plain";
  text: string;
}

const FEED_STATES: Readonly<Record<string, FeedWords>> = {
  pending: { label: "not polled yet", tone: "plain", text: "There was no poll yet." },
  ok: { label: "ok", tone: "good", text: "The last poll returned a document, and its entries were stored." },
  "not-modified": { label: "ok, unchanged", tone: "good", text: "The server said that nothing has changed since the last poll." },
  "not-a-feed": { label: "not a feed", tone: "bad", text: "The response is not RSS, Atom or JSON Feed. Its beginning is below." },
  challenged: {
    label: "challenged",
    tone: "warn",
    text: "The server answered with a bot check, so the feed cannot be read from here. The beginning of the page is below.",
  },
  gone: { label: "gone", tone: "bad", text: "The server said that the feed is gone for good. It is not polled until it is added again." },
  error: { label: "failing", tone: "bad", text: "The poll failed. It is retried at growing intervals." },
  paused: { label: "paused", tone: "plain", text: "Not polled at the moment: an operator paused it, or its entries cannot be stored." },
};

export function feedWords(state: string): FeedWords {
  return FEED_STATES[state] ?? { label: state, tone: "plain", text: "A state that this page does not know." };
}

/** Definitions of the numbers, by the name of the field. */
/** How the packets of a channel's flow are authenticated, for its form and its page. */
export const AUTHENTICATIONS: readonly { type: string; label: string; about: string }[] = [
  { type: "none", label: "none: updates are signed, packets are not", about: "" },
  { type: "auto", label: "auto: tags for few receivers, signatures for more", about: "Packets have tags for few receivers, signatures for more." },
  { type: "signature", label: "signature: behind each packet", about: "Each packet has a signature." },
  { type: "tags", label: "tags: one for each receiver", about: "Packets have a tag for each receiver." },
  { type: "stream", label: "stream: a signature behind each update, none for packets", about: "Each update has a signature on the flow." },
];

/** The sentence about the packets of a channel's flow; none where they are not authenticated. */
export function authenticationWords(type: string): string {
  return AUTHENTICATIONS.find((one) => one.type === type)?.about ?? `Packets are authenticated by ${type}.`;
}

/** When a channel's flow has repair packets, for its form. Commands take other ratios, and codes. */
export const FECS: readonly { type: string; label: string }[] = [
  { type: "adaptive", label: "adaptive: while receivers lose packets" },
  { type: "tail", label: "tail: one behind each burst" },
  { type: "reactive", label: "reactive: as many as the receiver needs that lost most" },
  { type: "proactive:1/20", label: "proactive: one behind each 20 packets" },
  { type: "tail,unicast", label: "tail, on each receiver's own connection" },
  { type: "off", label: "off: none" },
];

/** What repair packets cost and saved, beside the setting. */
export function repairWords(sent: number | null, saved: number): string {
  return sent === null ? "" : `${counted(sent, "repair packet")} sent, ${counted(saved, "repair")} saved`;
}

export const DEFINITIONS = {
  connected: "Receivers that have a QUIC connection to the source now.",
  delivered: "Connected receivers whose files hold every update up to the channel's newest one. Each has confirmed it.",
  behind: "Connected receivers that have not yet confirmed the channel's newest update. Right after an update that is normal for some milliseconds.",
  worst_lag: "Lag of the receiver that is furthest behind: its unconfirmed updates, and the age of the oldest of them.",
  offline: "Enrolled receivers without a connection. They get everything they missed when they come back.",
  updates_per_min: "Updates a minute that were published on the channel, as the mean of the last hour. An update is one version of one entry.",
  head: "The number of the channel's newest update. Updates are numbered without gaps.",
  flow_rate: "Rate at which the flow may be sent now: what its members' paths sustain, but no more than the channel's maximum. A member that holds it below the minimum rate, or loses too much, is moved to unicast.",
  packet_size: "UDP payload of a full packet of the flow: the most that the paths of all its members take. A member with a narrower path, as in a tunnel, decides for all.",
  fec: "Repair packets on the flow, or on the receivers' own connections, from which each receiver rebuilds packets that it lost: every packet rebuilt saves a repair on the receiver's own connection. Counted since the flow began.",
  flow_bytes: "Bytes sent on the flow: sealed and sent once, for all receivers on multicast and amt together.",
  copy_bytes: "Bytes of the flow's packets replicated to receivers on rung replicated. They are sealed once.",
  unicast_bytes: "Bytes of updates sent to single receivers on their own connections, because the flow does not reach them or they are catching up.",
  repair_bytes: "Bytes of lost flow packets that were sent again to single receivers.",
  unicast_equivalent_bytes: "Cost of the same deliveries if every receiver had been sent everything by unicast.",
  saved: "1 − (flow + replicated + unicast + repairs) ÷ the cost of unicast to all receivers, since the source started.",
  rtt: "Round-trip time between the source and the receiver on its own connection, smoothed.",
  behind_updates: "Updates that the receiver has not confirmed yet. With several channels, those of the channel on which it is most behind.",
  key_sequence: "Number of the key epoch that the receiver has confirmed. It changes whenever a receiver is removed.",
  cursor: "The last update up to which the receiver's files hold everything.",
  half_ms: "Time from publishing until half of the expected receivers had confirmed it.",
  p99_ms: "Time from publishing until 99 of 100 expected receivers had confirmed it.",
  all_ms: "Time from publishing until every expected receiver had confirmed it.",
  expected: "Receivers that were connected and subscribed when the update was published.",
  answer_ms: "Response time of the relay to the source's last probe.",
  rung: "The path by which the flow's packets reach a receiver. With several channels, the worst of them is shown.",
  since: "Time since which the receiver is on this rung.",
  cause: "Cause of the receiver's last move.",
  enrolled: "Time of the receiver's enrolment.",
  seen: "Time of the last admission: the start of the present connection, or of the last one.",
} as const;

/** Younger than this, an unconfirmed update is in transit, and no receiver counts as behind. */
export const IN_TRANSIT_MS = 2000;

/** With more of them unconfirmed, a receiver is behind, whatever their age: that is not known of updates from before the source's start. */
export const IN_TRANSIT_UPDATES = 100;

/** The answer to "is everybody getting everything?". */
export function verdict(now: {
  total: number;
  connected: number;
  /** Of the connected ones. */
  behind: number;
  offline: number;
  /** The most unconfirmed updates of one of them. */
  worst_lag_updates: number | null;
  /** How old the oldest unconfirmed update is. */
  worst_lag_ms: number | null;
}): {
  tone: "good" | "warn" | "bad" | "plain";
  word: string;
  sentence: string;
} {
  const { total, connected, behind, offline } = now;
  const away = offline ? ` ${counted(offline, "receiver")} ${offline === 1 ? "is" : "are"} offline and will catch up.` : "";
  if (total === 0) return { tone: "plain", word: "No receivers yet", sentence: "No receiver has been enrolled." };
  if (connected === 0) {
    return { tone: "bad", word: "No", sentence: `None of the ${counted(total, "receiver")} is connected.` };
  }
  if (behind === 0) {
    const who = connected === 1 ? "The connected receiver holds" : `All ${counted(connected, "connected receiver")} hold`;
    return { tone: offline > total / 10 ? "warn" : "good", word: "Yes", sentence: `${who} every update.${away}` };
  }
  const few = (now.worst_lag_updates ?? 0) <= IN_TRANSIT_UPDATES;
  if (few && now.worst_lag_ms !== null && now.worst_lag_ms < IN_TRANSIT_MS) {
    return { tone: "good", word: "Yes", sentence: `${counted(connected, "receiver")} connected; the newest updates are on their way to ${count(behind)}.${away}` };
  }
  const part = behind / connected;
  const sentence = `${counted(connected - behind, "receiver")} of ${count(connected)} connected hold every update, ${counted(behind, "is", "are")} behind.${away}`;
  return part > 0.05
    ? { tone: "bad", word: "Not everybody", sentence }
    : { tone: "warn", word: "Nearly", sentence };
}

/** What a receiver is called: its label, or the name by which it enrolled, or its id where that is empty. */
export function nameOf(one: { id: string; name: string; label: string | null }): string {
  return one.label?.trim() || one.name.trim() || one.id;
}

/** What is typed before it is removed: what it is called, or the beginning of its id where that cannot be typed as it is shown. */
export function typedName(one: { id: string; name: string; label: string | null }): string {
  const shown = (one.label?.trim() || one.name).replace(/\s+/gu, " ").trim();
  return shown.length <= 40 && /^[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$/u.test(shown) ? shown : one.id.slice(0, 8);
}

/** Descriptions of the audit log's actions; the result is shown beside them. */
export const ACTIONS: Readonly<Record<string, string>> = {
  setup: "set up the first operator",
  "setup.link": "make a setup link",
  "session.create": "sign in",
  "session.end": "sign out",
  "session.password": "change own password",
  "user.add": "add a user",
  "user.edit": "change a user",
  "user.remove": "remove a user",
  "api-token.create": "create an API token",
  "api-token.revoke": "revoke an API token",
  "receiver.edit": "change a receiver",
  "receiver.disconnect": "disconnect a receiver",
  "receiver.remove": "remove a receiver",
  "message.publish": "publish a message",
  "entry.publish": "publish an entry",
  "channel.create": "create a channel",
  "channel.edit": "change a channel",
  "channel.remove": "remove a channel",
  "channel.rekey": "rekey a channel",
  "feed.add": "add a feed",
  "feed.edit": "change a feed",
  "feed.remove": "remove a feed",
  "feed.import": "import feeds",
  "feed.refresh": "poll a feed",
  "feed.test": "try a feed",
  "enrolment.create": "make an enrolment link",
  "enrolment.revoke": "revoke an enrolment link",
  "source.drain": "drain the source",
};

/** An action of a newer console is shown as it is called. */
export function actionWords(action: string): string {
  return ACTIONS[action] ?? action;
}

/** What belongs to an action, as `label: Front desk, held: false`. What is not set is left out. */
export function detailWords(detail: unknown): string {
  if (detail === null || detail === undefined) return "";
  if (typeof detail !== "object" || Array.isArray(detail)) return typeof detail === "string" ? detail : JSON.stringify(detail);
  const words = Object.entries(detail).filter(([, value]) => value !== null && value !== "");
  return words.map(([key, value]) => `${key.replaceAll("_", " ")}: ${Array.isArray(value) && value.every((one) => typeof one === "string") ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : String(value)}`).join("; ");
}

/** Which feeds a filter shows: those of one kind, or all that an operator has to look at. */
export const FEED_KINDS = { trouble: "with trouble", ok: "ok", challenged: "challenged", failing: "failing", paused: "paused", pending: "not polled yet" } as const;
export type FeedKind = keyof typeof FEED_KINDS;

export function isOfKind(state: string, kind: FeedKind): boolean {
  const own = state === "ok" || state === "not-modified" ? "ok" : state === "challenged" || state === "paused" || state === "pending" ? state : "failing";
  return own === kind || (kind === "trouble" && (own === "failing" || own === "challenged"));
}
