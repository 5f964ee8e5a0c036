// Addresses are the state: every filter, range and page can be linked to.

export interface Match<T> {
  value: T;
  params: Record<string, string>;
}

/** Finds the first pattern (`/receivers/:id`) that fits a path. */
export function match<T>(routes: readonly (readonly [string, T])[], path: string): Match<T> | null {
  const parts = split(path);
  for (const [pattern, value] of routes) {
    const wanted = split(pattern);
    if (wanted.length !== parts.length) continue;
    const params: Record<string, string> = {};
    const fits = wanted.every((part, at) => {
      const given = parts[at] ?? "";
      if (!part.startsWith(":")) return part === given;
      params[part.slice(1)] = decode(given);
      return given !== "";
    });
    if (fits) return { value, params };
  }
  return null;
}

function split(path: string): string[] {
  return path.split("/").filter((part) => part !== "");
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The text of a query, without what is empty; the order of the keys stays. */
export function queryText(values: Record<string, string | number | boolean | null | undefined>): string {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "" || value === false) continue;
    query.set(key, String(value));
  }
  return query.toString();
}

class Router {
  path = $state(location.pathname);
  search = $state(location.search);
  /** Grows with each change of the page, not of its query. */
  visits = $state(0);
  query = $derived(new URLSearchParams(this.search));

  start(): void {
    window.addEventListener("popstate", () => this.read());
    document.addEventListener("click", (event) => this.click(event));
  }

  go(address: string, how: { replace?: boolean } = {}): void {
    if (how.replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
    this.read();
  }

  /** Changes keys of the query; `null` takes one away. */
  set(values: Record<string, string | null>, how: { replace?: boolean } = { replace: true }): void {
    const query = new URLSearchParams(this.search);
    for (const [key, value] of Object.entries(values)) {
      if (value === null || value === "") query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString();
    this.go(this.path + (text ? `?${text}` : ""), how);
  }

  private read(): void {
    const isOther = location.pathname !== this.path;
    this.path = location.pathname;
    this.search = location.search;
    if (isOther) {
      this.visits += 1;
      window.scrollTo(0, 0);
    }
  }

  private click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/")) return;
    if (link.hash && link.pathname === location.pathname && link.search === location.search) return;
    event.preventDefault();
    this.go(link.pathname + link.search + link.hash);
  }
}

export const router = new Router();
