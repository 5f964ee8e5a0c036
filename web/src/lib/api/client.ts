// Every call of /api/v1 that the pages make, by name. Paths, parameters, bodies and answers are
// checked against docs/openapi.json when this is compiled.
import createClient, { type Middleware } from "openapi-fetch";
import { queryText } from "../router.svelte";
import { session } from "../session.svelte";
import { skew } from "../skew";
import { asProblem, Problem, problemOfStatus, readProblem } from "./problem";
import type { operations, paths } from "./schema";
import type { Role, Scope } from "./types";

type Strict<Name extends keyof operations> = NonNullable<operations[Name]["parameters"]["query"]>;
/** The parameters of a call, each of which may be missing. */
type QueryOf<Name extends keyof operations> = { [Key in keyof Strict<Name>]?: Strict<Name>[Key] | null };

const CROSS_SITE = "urn:flexfeed:problem:cross-site";

/**
 * Sends a request. In another tab the user may have signed out and another one in: the cookie is another one then,
 * and the secret of this page old. It is requested again, and what was asked for in the same person's name is
 * asked for again.
 */
async function send(request: Request): Promise<Response> {
  const again = request.method === "GET" ? null : request.clone();
  const response = await fetch(request);
  const before = session.value;
  if (!again || !before || response.status !== 403) return response;
  if ((await readProblem(response.clone())).type !== CROSS_SITE) return response;
  await renewSession();
  const now = session.value;
  if (!now || now.csrf === before.csrf) return response;
  if (now.user.name !== before.user.name) {
    throw new Problem(409, `${now.user.name} is signed in now`, `It was done in another tab; you were ${before.user.name} here. Nothing was changed. Do it again if you want it in this name.`);
  }
  again.headers.set("x-csrf-token", now.csrf ?? "");
  return fetch(again);
}

const client = createClient<paths>({ credentials: "same-origin", cache: "no-store", fetch: send });

const manners: Middleware = {
  onRequest({ request }) {
    const csrf = session.value?.csrf;
    if (request.method !== "GET" && csrf) request.headers.set("x-csrf-token", csrf);
  },
  async onResponse({ request, response }) {
    skew.read(response);
    if (response.ok) return;
    const problem = await readProblem(response);
    if (problem.status === 401 && !new URL(request.url).pathname.endsWith("/session")) session.lost();
    throw problem;
  },
  onError({ error }) {
    if (error instanceof Problem || (error instanceof DOMException && error.name === "AbortError")) return error;
    return problemOfStatus(0);
  },
};
client.use(manners);

/** What is answered. Everything but success was thrown as a `Problem` before. */
async function answer<Data>(call: Promise<{ data?: Data }>): Promise<Data> {
  return (await call).data as Data;
}

/** Leaves out what is not set: the console refuses an empty value. */
function set<Query extends object>(query: Query): { [Key in keyof Query]?: NonNullable<Query[Key]> } {
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "")) as {
    [Key in keyof Query]?: NonNullable<Query[Key]>;
  };
}

export const api = {
  session: () => answer(client.GET("/api/v1/session")),
  signIn: (name: string, password: string) => answer(client.POST("/api/v1/session", { body: { name, password } })),
  signOut: () => answer(client.DELETE("/api/v1/session")),
  setUp: (token: string, name: string, password: string) => answer(client.POST("/api/v1/setup", { body: { token, name, password } })),
  changePassword: (current: string, password: string) => answer(client.POST("/api/v1/session/password", { body: { current, password } })),

  overview: (signal?: AbortSignal) => answer(client.GET("/api/v1/overview", { signal })),
  samples: (query: QueryOf<"samples">, signal?: AbortSignal) => answer(client.GET("/api/v1/samples", { params: { query: set(query) }, signal })),

  receivers: (query: QueryOf<"receivers">, signal?: AbortSignal) => answer(client.GET("/api/v1/receivers", { params: { query: set(query) }, signal })),
  receiver: (id: string, signal?: AbortSignal) => answer(client.GET("/api/v1/receivers/{id}", { params: { path: { id } }, signal })),
  receiverMoves: (id: string, query: QueryOf<"receiver_moves">, signal?: AbortSignal) =>
    answer(client.GET("/api/v1/receivers/{id}/moves", { params: { path: { id }, query: set(query) }, signal })),
  receiverSessions: (id: string, query: QueryOf<"receiver_sessions">, signal?: AbortSignal) =>
    answer(client.GET("/api/v1/receivers/{id}/sessions", { params: { path: { id }, query: set(query) }, signal })),
  changeReceiver: (id: string, body: { label?: string; tags?: string[]; held?: boolean }) =>
    answer(client.PATCH("/api/v1/receivers/{id}", { params: { path: { id } }, body })),
  disconnect: (id: string) => answer(client.POST("/api/v1/receivers/{id}/disconnect", { params: { path: { id } } })),
  removeReceiver: (id: string, forget: boolean) => answer(client.DELETE("/api/v1/receivers/{id}", { params: { path: { id }, query: { forget } } })),

  moves: (query: QueryOf<"moves">, signal?: AbortSignal) => answer(client.GET("/api/v1/moves", { params: { query: set(query) }, signal })),

  channels: (signal?: AbortSignal) => answer(client.GET("/api/v1/channels", { signal })),
  channel: (name: string, signal?: AbortSignal) => answer(client.GET("/api/v1/channels/{name}", { params: { path: { name } }, signal })),
  addChannel: (body: { name: string; private: boolean; packet_authentication: string; fec: string; deadline_ms: number | null }) => answer(client.POST("/api/v1/channels", { body })),
  rekey: (name: string) => answer(client.POST("/api/v1/channels/{name}/rekey", { params: { path: { name } } })),

  feeds: (signal?: AbortSignal) => answer(client.GET("/api/v1/feeds", { signal })),
  feedHistory: (id: string, signal?: AbortSignal) => answer(client.GET("/api/v1/feeds/{id}/history", { params: { path: { id } }, signal })),
  addFeed: (body: { channel: string; url: string; title: string | null; min_interval_ms: number | null }) => answer(client.POST("/api/v1/feeds", { body })),
  changeFeed: (id: string, body: { paused?: boolean; title?: string }) => answer(client.PATCH("/api/v1/feeds/{id}", { params: { path: { id } }, body })),
  removeFeed: (id: string) => answer(client.DELETE("/api/v1/feeds/{id}", { params: { path: { id } } })),
  refreshFeed: (id: string) => answer(client.POST("/api/v1/feeds/{id}/refresh", { params: { path: { id } } })),
  testFeed: (url: string, signal?: AbortSignal) => answer(client.POST("/api/v1/feeds/test", { body: { url }, signal })),

  relays: (signal?: AbortSignal) => answer(client.GET("/api/v1/relays", { signal })),

  updates: (query: QueryOf<"updates">, signal?: AbortSignal) => answer(client.GET("/api/v1/updates", { params: { query: set(query) }, signal })),
  update: (channel: string, seq: number, signal?: AbortSignal) =>
    answer(client.GET("/api/v1/updates/{channel}/{seq}", { params: { path: { channel, seq } }, signal })),

  enrolments: (signal?: AbortSignal) => answer(client.GET("/api/v1/enrolments", { signal })),
  addEnrolment: (body: { label: string; channels: string[]; limit: number | null; expires_ms: number | null }) =>
    answer(client.POST("/api/v1/enrolments", { body })),
  removeEnrolment: (id: number) => answer(client.DELETE("/api/v1/enrolments/{id}", { params: { path: { id } } })),

  users: (signal?: AbortSignal) => answer(client.GET("/api/v1/users", { signal })),
  addUser: (body: { name: string; password: string; role: Role }) => answer(client.POST("/api/v1/users", { body })),
  changeUser: (id: number, body: { role?: Role; password?: string; disabled?: boolean }) =>
    answer(client.PATCH("/api/v1/users/{id}", { params: { path: { id } }, body })),
  removeUser: (id: number) => answer(client.DELETE("/api/v1/users/{id}", { params: { path: { id } } })),

  tokens: (signal?: AbortSignal) => answer(client.GET("/api/v1/api-tokens", { signal })),
  addToken: (body: { name: string; scopes: Scope[]; expires_ms: number | null }) => answer(client.POST("/api/v1/api-tokens", { body })),
  removeToken: (id: number) => answer(client.DELETE("/api/v1/api-tokens/{id}", { params: { path: { id } } })),

  audit: (query: QueryOf<"audit">, signal?: AbortSignal) => answer(client.GET("/api/v1/audit", { params: { query: set(query) }, signal })),
  drain: () => answer(client.POST("/api/v1/source/drain")),
  command: (id: number) => answer(client.GET("/api/v1/commands/{id}", { params: { path: { id } } })),
};

/** Requests the signed-in user: in another tab it may have become another one. */
export async function renewSession(): Promise<void> {
  try {
    const now = await api.session();
    if (session.value && JSON.stringify(now) !== JSON.stringify(session.value)) session.begin(now);
  } catch (error) {
    if (asProblem(error).status === 401) session.lost();
  }
}

/** The address of an export with the filters of a table. */
export function exportLink(path: string, format: "csv" | "json", query: Record<string, string | null>): string {
  return `/api/v1${path}?${queryText({ ...query, format })}`;
}
