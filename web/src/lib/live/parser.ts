/** One event of a server-sent event stream. */
export interface ServerEvent {
  type: string;
  data: string;
  id: string | null;
}

/** More than this in one event is no answer of ours. */
export const MAX_EVENT = 32 * 1024 * 1024;

/**
 * Reads `text/event-stream` from pieces of text as they come. Only what the console sends is
 * needed, but every line ending and field of the format is understood.
 */
export class EventParser {
  private rest = "";
  private data: string[] = [];
  private size = 0;
  private type = "";
  private sawReturn = false;
  private first = true;
  lastId: string | null = null;
  retryMs: number | null = null;

  /** Takes a piece and returns the events that it completes. Throws if one grows without end. */
  push(piece: string): ServerEvent[] {
    let text = piece;
    if (this.first && text.length) {
      this.first = false;
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
    }
    const events: ServerEvent[] = [];
    let start = 0;
    for (let at = 0; at < text.length; at += 1) {
      const code = text.charCodeAt(at);
      if (code !== 10 && code !== 13) {
        this.sawReturn = false;
        continue;
      }
      if (code === 10 && this.sawReturn) {
        // The second half of a CR LF.
        this.sawReturn = false;
        start = at + 1;
        continue;
      }
      this.sawReturn = code === 13;
      const event = this.line(this.rest + text.slice(start, at));
      this.rest = "";
      start = at + 1;
      if (event) events.push(event);
    }
    this.rest += text.slice(start);
    if (this.rest.length + this.size > MAX_EVENT) throw new RangeError("an event of the stream is too large");
    return events;
  }

  private line(line: string): ServerEvent | null {
    if (line === "") {
      const event = this.data.length ? { type: this.type || "message", data: this.data.join("\n"), id: this.lastId } : null;
      this.data = [];
      this.size = 0;
      this.type = "";
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") {
      this.data.push(value);
      this.size += value.length;
      if (this.size > MAX_EVENT) throw new RangeError("an event of the stream is too large");
    } else if (field === "event") this.type = value;
    else if (field === "id" && !value.includes("\0")) this.lastId = value;
    else if (field === "retry" && /^\d{1,9}$/.test(value)) this.retryMs = Number(value);
    return null;
  }
}
