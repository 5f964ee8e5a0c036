// The shapes of /api/v1, by the names that the pages use.

export type Rung = "multicast" | "amt" | "replicated" | "unicast" | "offline";
export type Role = "viewer" | "operator";

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export interface Session {
  user: { name: string; role: Role };
  /** Null for a caller that needs none: one with a token. */
  csrf: string | null;
}

export interface RungCounts {
  total: number;
  connected: number;
  multicast: number;
  amt: number;
  replicated: number;
  unicast: number;
  offline: number;
}

export interface Lag {
  delivered: number;
  behind: number;
  worst_lag_updates: number;
  worst_lag_ms: number | null;
}

export interface ChannelNow extends Lag {
  name: string;
  head: number;
  receivers: RungCounts;
  updates_per_min: number;
  flow_bytes: number;
  copy_bytes: number;
  unicast_bytes: number;
  repair_bytes: number;
  unicast_equivalent_bytes: number;
}

export interface Move {
  id: number;
  at_ms: number;
  receiver: string;
  name: string;
  channel: string;
  from: string;
  to: string;
  cause: string;
}

export interface Warning {
  code: string;
  text: string;
}

export interface SourceNow {
  state: string;
  holder: string | null;
  software: string | null;
  started_ms: number | null;
  seen_ms: number | null;
  public_address: string | null;
  draining: boolean;
  warnings: Warning[];
}

export interface Overview {
  /** Null before a source has written anything. */
  as_of_ms: number | null;
  /** Whether the console can read its database now. */
  database_ok: boolean;
  source: SourceNow;
  /** Over receivers, each counted once, by the worst of its rungs. */
  receivers: RungCounts;
  channels: ChannelNow[];
  moves: Move[];
  feeds: { ok: number; failing: number; challenged: number; paused: number; pending: number };
  relays: { healthy: number; total: number };
}

export interface ReceiverChannel {
  channel: string;
  rung: Rung;
  since_ms: number | null;
  cause: string | null;
  cursor: number | null;
  behind_updates: number | null;
  key_sequence: number | null;
  updated_ms: number | null;
}

export interface Receiver {
  id: string;
  name: string;
  label: string | null;
  tags: string[];
  software: string | null;
  address: string | null;
  connected: boolean;
  revoked: boolean;
  held: boolean;
  enrolled_ms: number | null;
  seen_ms: number | null;
  rtt_ms: number | null;
  rung: Rung;
  cause: string | null;
  since_ms: number | null;
  behind_updates: number | null;
  channels: ReceiverChannel[];
}

export interface ReceiverPage extends Page<Receiver> {
  total: number;
  filtered: number;
}

export interface ReceiverSession {
  id: string;
  receiver: string;
  began_ms: number;
  ended_ms: number | null;
  end_cause: string | null;
  address: string | null;
  software: string | null;
}

export interface SamplePoint {
  at_ms: number;
  multicast: number;
  amt: number;
  replicated: number;
  unicast: number;
  offline: number;
  behind: number;
  updates: number;
  flow_bytes: number;
  copy_bytes: number;
  unicast_bytes: number;
  repair_bytes: number;
  unicast_equivalent_bytes: number;
}

export interface Samples {
  channel: string | null;
  step_ms: number;
  from_ms: number;
  to_ms: number;
  points: SamplePoint[];
}

export interface Channel extends ChannelNow {
  created_ms: number | null;
  private: boolean;
  origin: string;
  groups: string[];
  key_sequence: number | null;
  feeds: number;
  first: number;
}

export interface Progress {
  expected: number;
  delivered: number;
  half_ms: number | null;
  p99_ms: number | null;
  all_ms: number | null;
}

export interface Update {
  channel: string;
  seq: number;
  feed_url: string | null;
  entry_id: string;
  /** `created` or `updated`. */
  kind: string;
  published_ms: number;
  bytes: number;
  title: string | null;
  progress: Progress | null;
}

export interface UpdateDetail extends Update {
  link: string | null;
  authors: string[];
  updated_ms: number | null;
  content: string | null;
  content_type: string | null;
  /** There was more of it than the console gives. */
  content_cut: boolean;
  summary: string | null;
}

export interface Relay {
  address: string;
  asked: string | null;
  healthy: boolean;
  since_ms: number | null;
  answer_ms: number | null;
  detail: string | null;
}

export interface FeedSeen {
  at_ms: number;
  state: string;
  detail: string | null;
  excerpt: string | null;
}

export interface Feed {
  id: string;
  channel: string;
  url: string;
  title: string | null;
  state: string;
  detail: string | null;
  since_ms: number | null;
  last_poll_ms: number | null;
  next_poll_ms: number | null;
  interval_ms: number | null;
  min_interval_ms: number | null;
  max_interval_ms: number | null;
  local: boolean;
  paused: boolean;
  moved_to: string | null;
  /** `flags`: given to the source at its start, and only changed there. `managed`: here. */
  origin: string;
  seen: FeedSeen | null;
}

export interface FeedHour {
  at_ms: number;
  polls: number;
  ok: number;
  not_modified: number;
  failed: number;
  challenged: number;
  entries: number;
}

export interface FeedHistory {
  events: FeedSeen[];
  hours: FeedHour[];
}

export interface FeedTest {
  state: string;
  title: string | null;
  detail: string | null;
  took_ms: number;
  entry_count: number;
  entries: { title: string | null; link: string | null; published_ms: number | null }[];
  excerpt: string | null;
}

export interface Enrolment {
  token_id: number;
  label: string | null;
  channels: string[];
  created_ms: number | null;
  expires_ms: number | null;
  limit: number | null;
  used: number;
  revoked_ms: number | null;
}

export interface NewEnrolment {
  token_id: number;
  link: string;
  docker_run: string;
  helm_install: string;
  binary: string;
  warning: string | null;
}

export interface User {
  id: number;
  name: string;
  role: Role;
  created_ms: number | null;
  disabled_ms: number | null;
  is_self: boolean;
}

export interface ApiToken {
  id: number;
  name: string;
  user: string | null;
  scopes: string[];
  created_ms: number | null;
  expires_ms: number | null;
  seen_ms: number | null;
  revoked_ms: number | null;
  token?: string;
}

export interface AuditRow {
  id: number;
  at_ms: number;
  actor: string;
  via: string;
  action: string;
  target: string | null;
  detail: unknown;
  outcome: string;
  address: string | null;
}

export interface Command {
  id: number;
  kind: string;
  state: string;
  result: string | null;
}

export interface Asked {
  command_id: number;
}

/** The first message of the event stream, and the one after a gap. */
export interface Snapshot {
  overview: Overview;
  receivers: ReceiverPage | null;
}

/** What is different from the message before. */
export interface Delta {
  overview: Overview | null;
  receivers: Receiver[];
  gone: string[];
  order: string[] | null;
  total: number | null;
  filtered: number | null;
  moves: Move[];
  feeds: Feed[];
  feeds_gone: string[];
  relays: Relay[] | null;
}
