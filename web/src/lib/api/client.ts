// Every call of /api/v1 that the pages make, by name.
import { session } from "../session.svelte";
import { queryText } from "../router.svelte";
import { skew } from "../skew";
import { problemOfStatus, readProblem } from "./problem";
import type * as T from "./types";

type Query = Record<string, string | number | boolean | null | undefined>;

interface Options {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
}

const ROOT = "/api/v1";

/** One call. Throws a `Problem` for everything but success. */
async function call<Answer>(method: string, path: string, options: Options = {}): Promise<Answer> {
  const headers: Record<string, string> = { accept: "application/json" };
  if (options.body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && session.value?.csrf) headers["x-csrf-token"] = session.value.csrf;
  const query = options.query ? queryText(options.query) : "";
  let response: Response;
  try {
    response = await fetch(ROOT + path + (query ? `?${query}` : ""), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw problemOfStatus(0);
  }
  skew.read(response);
  if (!response.ok) {
    const problem = await readProblem(response);
    if (problem.status === 401 && path !== "/session") session.lost();
    throw problem;
  }
  if (response.status === 204 || response.headers.get("content-length") === "0") return undefined as Answer;
  return (await response.json()) as Answer;
}

const part = encodeURIComponent;

export const api = {
  session: () => call<T.Session>("GET", "/session"),
  signIn: (name: string, password: string) => call<T.Session>("POST", "/session", { body: { name, password } }),
  signOut: () => call<void>("DELETE", "/session"),
  setUp: (token: string, name: string, password: string) => call<T.Session | undefined>("POST", "/setup", { body: { token, name, password } }),

  overview: (signal?: AbortSignal) => call<T.Overview>("GET", "/overview", { signal }),
  samples: (query: Query, signal?: AbortSignal) => call<T.Samples>("GET", "/samples", { query, signal }),

  receivers: (query: Query, signal?: AbortSignal) => call<T.ReceiverPage>("GET", "/receivers", { query, signal }),
  receiver: (id: string, signal?: AbortSignal) => call<T.Receiver>("GET", `/receivers/${part(id)}`, { signal }),
  receiverMoves: (id: string, query: Query, signal?: AbortSignal) =>
    call<T.Page<T.Move>>("GET", `/receivers/${part(id)}/moves`, { query, signal }),
  receiverSessions: (id: string, query: Query, signal?: AbortSignal) =>
    call<T.Page<T.ReceiverSession>>("GET", `/receivers/${part(id)}/sessions`, { query, signal }),
  changeReceiver: (id: string, body: { label?: string; tags?: string[]; held?: boolean }) =>
    call<T.Receiver>("PATCH", `/receivers/${part(id)}`, { body }),
  disconnect: (id: string) => call<T.Asked>("POST", `/receivers/${part(id)}/disconnect`),
  removeReceiver: (id: string, forget: boolean) =>
    call<T.Asked | undefined>("DELETE", `/receivers/${part(id)}`, { query: { forget: forget ? "true" : null } }),

  moves: (query: Query, signal?: AbortSignal) => call<T.Page<T.Move>>("GET", "/moves", { query, signal }),

  channels: (signal?: AbortSignal) => call<T.Page<T.Channel>>("GET", "/channels", { signal }),
  channel: (name: string, signal?: AbortSignal) => call<T.Channel>("GET", `/channels/${part(name)}`, { signal }),
  addChannel: (body: { name: string; private: boolean }) => call<T.Channel>("POST", "/channels", { body }),
  rekey: (name: string) => call<T.Asked>("POST", `/channels/${part(name)}/rekey`),

  feeds: (signal?: AbortSignal) => call<T.Page<T.Feed>>("GET", "/feeds", { signal }),
  feedHistory: (id: string, signal?: AbortSignal) => call<T.FeedHistory>("GET", `/feeds/${part(id)}/history`, { signal }),
  addFeed: (body: { channel: string; url: string; title: string | null; min_interval_ms: number | null }) =>
    call<T.Feed>("POST", "/feeds", { body }),
  changeFeed: (id: string, body: { paused?: boolean; title?: string }) => call<T.Feed>("PATCH", `/feeds/${part(id)}`, { body }),
  removeFeed: (id: string) => call<void>("DELETE", `/feeds/${part(id)}`),
  refreshFeed: (id: string) => call<T.Asked>("POST", `/feeds/${part(id)}/refresh`),
  testFeed: (url: string, signal?: AbortSignal) => call<T.FeedTest>("POST", "/feeds/test", { body: { url }, signal }),

  relays: (signal?: AbortSignal) => call<T.Page<T.Relay>>("GET", "/relays", { signal }),

  updates: (query: Query, signal?: AbortSignal) => call<T.Page<T.Update>>("GET", "/updates", { query, signal }),
  update: (channel: string, seq: string, signal?: AbortSignal) =>
    call<T.UpdateDetail>("GET", `/updates/${part(channel)}/${part(seq)}`, { signal }),

  enrolments: (signal?: AbortSignal) => call<T.Page<T.Enrolment>>("GET", "/enrolments", { signal }),
  addEnrolment: (body: { label: string; channels: string[]; limit: number | null; expires_ms: number | null }) =>
    call<T.NewEnrolment>("POST", "/enrolments", { body }),
  removeEnrolment: (id: number) => call<void>("DELETE", `/enrolments/${id}`),

  users: (signal?: AbortSignal) => call<T.Page<T.User>>("GET", "/users", { signal }),
  addUser: (body: { name: string; password: string; role: T.Role }) => call<T.User>("POST", "/users", { body }),
  changeUser: (id: number, body: { role?: T.Role; password?: string; disabled?: boolean }) => call<T.User>("PATCH", `/users/${id}`, { body }),
  removeUser: (id: number) => call<void>("DELETE", `/users/${id}`),
  changePassword: (current: string, password: string) => call<void>("POST", "/session/password", { body: { current, password } }),

  tokens: (signal?: AbortSignal) => call<T.Page<T.ApiToken>>("GET", "/api-tokens", { signal }),
  addToken: (body: { name: string; scopes: string[]; expires_ms: number | null }) => call<T.ApiToken>("POST", "/api-tokens", { body }),
  removeToken: (id: number) => call<void>("DELETE", `/api-tokens/${id}`),

  audit: (query: Query, signal?: AbortSignal) => call<T.Page<T.AuditRow>>("GET", "/audit", { query, signal }),
  drain: () => call<T.Asked>("POST", "/source/drain"),
  command: (id: number) => call<T.Command>("GET", `/commands/${id}`),
};

/** The address of an export with the filters of a table. */
export function exportLink(path: string, format: "csv" | "json", query: Query): string {
  return `${ROOT}${path}?${queryText({ ...query, format })}`;
}
