import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { EventParser, MAX_EVENT } from "../lib/live/parser";
import { backoff, EventStream, type StreamState } from "../lib/live/stream";

describe("the parser", () => {
  it("reads events in any pieces and with any line ends", () => {
    const text = "\ufeff: hello\r\nid: 7\r\nevent: delta\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nretry: 1500\rdata: x\r\r\n\ndata:y\n\n";
    for (let size = 1; size <= text.length; size += 1) {
      const parser = new EventParser();
      const events = [];
      for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
      expect(events).toEqual([
        { type: "delta", data: '{"a":\n1}', id: "7" },
        { type: "message", data: "x", id: "7" },
        { type: "message", data: "y", id: "7" },
      ]);
      expect(parser.retryMs).toBe(1500);
    }
  });

  it("makes no event of comments, empty blocks and unknown fields", () => {
    expect(new EventParser().push(": here\n\nevent: x\n\nfoo: bar\nid\n\n")).toEqual([]);
  });

  it("does not grow without bound", () => {
    const parser = new EventParser();
    const piece = "x".repeat(8 * 1024 * 1024);
    expect(() => {
      parser.push("data: ");
      for (let size = 0; size <= MAX_EVENT; size += piece.length) parser.push(piece);
    }).toThrow(RangeError);
  });
});

describe("the wait before the next try", () => {
  it("doubles, has a bound, and is jittered by a quarter", () => {
    expect(backoff(1, 1000, 30_000, 0.5)).toBe(1000);
    expect(backoff(4, 1000, 30_000, 0.5)).toBe(8000);
    expect(backoff(100, 1000, 30_000, 0.5)).toBe(30_000);
    expect(backoff(1, 1000, 30_000, 0)).toBe(750);
    expect(backoff(1, 1000, 30_000, 1)).toBe(1250);
  });
});

interface Call {
  url: string;
  headers: Record<string, string>;
  send: (text: string) => void;
  end: () => void;
  aborted: () => boolean;
}

function harness(answer?: (call: number) => Response | Promise<Response> | null, other: string | null = null) {
  const calls: Call[] = [];
  const states: StreamState[] = [];
  const events: string[] = [];
  let signedOut = 0;
  const stream = new EventStream({
    onEvent: (event) => events.push(`${event.type} ${event.data}`),
    onState: (state) => states.push(state),
    onSignedOut: () => (signedOut += 1),
    onRefused: () => other,
    random: () => 0.5,
    silenceMs: 40_000,
    fetch: (async (url: string, init: RequestInit) => {
      const own = answer?.(calls.length);
      let controller!: ReadableStreamDefaultController<Uint8Array>;
      const body = new ReadableStream<Uint8Array>({ start: (made) => void (controller = made) });
      calls.push({
        url,
        headers: init.headers as Record<string, string>,
        send: (text) => controller.enqueue(new TextEncoder().encode(text)),
        end: () => controller.close(),
        aborted: () => init.signal?.aborted ?? false,
      });
      if (own) return own;
      return new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
    }) as unknown as typeof fetch,
  });
  return { stream, calls, states, events, signedOut: () => signedOut };
}

async function settle() {
  await vi.advanceTimersByTimeAsync(0);
  await vi.advanceTimersByTimeAsync(0);
}

describe("the stream", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("is live with the first bytes, whatever they are: a watcher that missed nothing is sent no event", async () => {
    const { stream, calls, states, events } = harness();
    stream.open("/events");
    await settle();
    expect(states.at(-1)?.kind).toBe("connecting");
    calls[0]?.send("retry: 2000\n\n");
    await settle();
    expect(states.at(-1)?.kind).toBe("live");
    expect(events).toEqual([]);
    // A server that hangs up each time before an event is asked ever more rarely all the same.
    calls[0]?.end();
    await settle();
    expect(states.at(-1)).toMatchObject({ kind: "waiting", tries: 1 });
    await vi.advanceTimersByTimeAsync(2000);
    calls[1]?.send("retry: 2000\n\n");
    await settle();
    expect(states.at(-1)?.kind).toBe("live");
    calls[1]?.end();
    await settle();
    expect(states.at(-1)).toMatchObject({ kind: "waiting", tries: 2 });
    stream.close();
  });

  it("begins again behind the last event", async () => {
    const { stream, calls, states, events } = harness();
    stream.open("/events");
    await settle();
    expect(states.at(-1)?.kind).toBe("connecting");
    calls[0]?.send("id: 3\nevent: snapshot\ndata: one\n\n");
    await settle();
    expect(states.at(-1)?.kind).toBe("live");
    calls[0]?.end();
    await settle();
    expect(states.at(-1)).toMatchObject({ kind: "waiting", tries: 1 });
    await vi.advanceTimersByTimeAsync(999);
    expect(calls.length).toBe(1);
    await vi.advanceTimersByTimeAsync(1);
    await settle();
    expect(calls[1]?.headers["last-event-id"]).toBe("3");
    calls[1]?.send("id: 4\nevent: delta\ndata: two\n\n");
    await settle();
    expect(events).toEqual(["snapshot one", "delta two"]);
    stream.close();
  });

  it("waits longer and longer while the server refuses, at least as long as it says", async () => {
    const { stream, calls, states } = harness((call) => (call === 1 ? new Response("", { status: 503, headers: { "retry-after": "20" } }) : new Response("", { status: 503 })));
    stream.open("/events");
    await settle();
    expect(states.at(-1)).toMatchObject({ kind: "waiting", tries: 1 });
    await vi.advanceTimersByTimeAsync(1000);
    expect(calls.length).toBe(2);
    expect(states.at(-1)).toMatchObject({ kind: "waiting", tries: 2 });
    await vi.advanceTimersByTimeAsync(19_000);
    expect(calls.length).toBe(2);
    await vi.advanceTimersByTimeAsync(1000);
    expect(calls.length).toBe(3);
    await vi.advanceTimersByTimeAsync(4000);
    expect(calls.length).toBe(4);
    stream.close();
  });

  it("notices a connection that went silent", async () => {
    const { stream, calls, states } = harness();
    stream.open("/events");
    await settle();
    calls[0]?.send("data: x\n\n");
    await vi.advanceTimersByTimeAsync(30_000);
    calls[0]?.send(": here\n\n");
    await vi.advanceTimersByTimeAsync(39_000);
    expect(states.at(-1)?.kind).toBe("live");
    await vi.advanceTimersByTimeAsync(1001);
    expect(states.at(-1)?.kind).toBe("waiting");
    expect(calls[0]?.aborted()).toBe(true);
    stream.close();
  });

  it("lets go while it is paused and goes on at once", async () => {
    const { stream, calls, states, events } = harness();
    stream.open("/events");
    await settle();
    calls[0]?.send("id: 9\ndata: x\n\n");
    await settle();
    stream.pause();
    expect(states.at(-1)?.kind).toBe("paused");
    expect(calls[0]?.aborted()).toBe(true);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(calls.length).toBe(1);
    stream.resume();
    await settle();
    expect(calls[1]?.headers["last-event-id"]).toBe("9");
    expect(events).toEqual(["message x"]);
    stream.close();
  });

  it("reports that the user is signed out, and stops", async () => {
    const { stream, calls, signedOut } = harness(() => new Response("", { status: 401 }));
    stream.open("/events");
    await settle();
    expect(signedOut()).toBe(1);
    await vi.advanceTimersByTimeAsync(600_000);
    expect(calls.length).toBe(1);
    stream.close();
  });

  it("is opened at the same address again after a sign-in", async () => {
    let isIn = false;
    const { stream, calls } = harness(() => (isIn ? null : new Response("", { status: 401 })));
    stream.open("/events");
    await settle();
    isIn = true;
    stream.open("/events");
    await settle();
    expect(calls.length).toBe(2);
    stream.close();
  });

  it("forgets with its end that it was paused", async () => {
    const { stream, calls } = harness();
    stream.open("/events");
    await settle();
    stream.pause();
    stream.close();
    stream.open("/events");
    await settle();
    expect(calls.length).toBe(2);
    stream.close();
  });

  it("follows another address where what it asks for is never understood", async () => {
    const { stream, calls, states } = harness((call) => (call === 0 ? new Response("", { status: 400 }) : null), "/events");
    stream.open("/events?rung=foo");
    await settle();
    expect(calls.map((one) => one.url)).toEqual(["/events?rung=foo", "/events"]);
    calls[1]?.send("retry: 2000\n\n");
    await settle();
    expect(states.map((one) => one.kind)).not.toContain("waiting");
    expect(states.at(-1)?.kind).toBe("live");
    stream.close();
  });

  it("does not ask on and on where there is no other address", async () => {
    const { stream, calls, states } = harness(() => new Response("", { status: 400 }), "/events");
    stream.open("/events");
    await settle();
    expect(calls.length).toBe(1);
    expect(states.at(-1)?.kind).toBe("waiting");
    stream.close();
  });

  it("opens another address, and takes nothing more from the old one", async () => {
    const { stream, calls, events } = harness();
    stream.open("/events");
    await settle();
    calls[0]?.send("id: 5\ndata: old\n\n");
    await settle();
    stream.open("/events?rung=unicast");
    await settle();
    expect(calls[1]?.url).toBe("/events?rung=unicast");
    expect(calls[1]?.headers["last-event-id"]).toBeUndefined();
    expect(calls[0]?.aborted()).toBe(true);
    calls[0]?.send("data: late\n\n");
    calls[1]?.send("data: new\n\n");
    await settle();
    expect(events).toEqual(["message old", "message new"]);
    stream.close();
  });

  it("does not take a page for a stream", async () => {
    const { stream, states } = harness(() => new Response("<html>", { headers: { "content-type": "text/html" } }));
    stream.open("/events");
    await settle();
    expect(states.at(-1)?.kind).toBe("waiting");
    stream.close();
  });
});
