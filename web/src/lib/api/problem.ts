/** An error of the API (problem+json, RFC 9457), or the lack of an answer, in words for people. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly type: string = "about:blank",
    readonly retryAfterMs: number | null = null,
    readonly members: Record<string, unknown> = {},
  ) {
    super(detail ? `${title}: ${detail}` : title);
    this.name = "Problem";
  }
}

const BY_STATUS: Record<number, [string, string]> = {
  0: ["The console does not answer", "It may be restarting, or the network between you and it is down."],
  401: ["You are signed out", "Sign in again to go on."],
  403: ["You may not do that", "It takes the role operator."],
  404: ["Not found", "It was removed, or the address is wrong."],
  409: ["It has changed meanwhile", "Load the page again and look at the newer state."],
  413: ["Too large", "What was sent is larger than the console takes."],
  422: ["Something in it is not right", "Check what you filled in."],
  429: ["Too many tries", "Wait a little and try again."],
  503: ["Not available at the moment", "The console cannot reach its database. It goes on trying by itself."],
};

/** The problem for a status when the answer itself says nothing readable. */
export function problemOfStatus(status: number): Problem {
  const known = BY_STATUS[status];
  if (known) return new Problem(status, known[0], known[1]);
  if (status >= 500) {
    return new Problem(status, "The console has failed", `It answered with status ${status}; its log says why.`);
  }
  return new Problem(status, "The console refused that", `It answered with status ${status}.`);
}

function text(value: unknown): string {
  return typeof value === "string" ? value.slice(0, 1000) : "";
}

/** The console's details begin like the middle of a sentence; here they stand alone. */
function sentence(words: string): string {
  if (!words) return words;
  // An address or a name stays as it is written.
  const begun = /^[a-z]+[ ,;]/.test(words) ? words.charAt(0).toUpperCase() + words.slice(1) : words;
  return /[.!?…:]$/.test(begun) ? begun : `${begun}.`;
}

/** Reads an answer that is no success. Never throws: whatever stands there becomes a problem. */
export async function readProblem(response: Response): Promise<Problem> {
  const fallback = problemOfStatus(response.status);
  let body: unknown = null;
  try {
    const type = response.headers.get("content-type") ?? "";
    if (type.includes("json")) body = await response.json();
  } catch {
    // Not readable: the status speaks.
  }
  const members = (body && typeof body === "object" ? body : {}) as Record<string, unknown>;
  const wait = Number(members.retry_after_s ?? response.headers.get("retry-after"));
  const retry = Number.isFinite(wait) && wait > 0 ? Math.min(wait, 3600) * 1000 : null;
  return new Problem(
    response.status,
    text(members.title) || fallback.title,
    sentence(text(members.detail)) || (text(members.title) ? "" : fallback.detail),
    text(members.type) || "about:blank",
    retry,
    members,
  );
}

/** Any thrown value as a problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError) return problemOfStatus(0);
  return new Problem(0, "Something went wrong in this page", error instanceof Error ? error.message : String(error));
}
