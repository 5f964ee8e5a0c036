export interface Shortcut {
  keys: string;
  text: string;
  address?: string;
}

/** `g o` means: g, and then o. */
export const SHORTCUTS: readonly Shortcut[] = [
  { keys: "?", text: "This list" },
  { keys: "/", text: "Search the list, or the receivers" },
  { keys: "g o", text: "Overview", address: "/" },
  { keys: "g r", text: "Receivers", address: "/receivers" },
  { keys: "g m", text: "Moves", address: "/moves" },
  { keys: "g c", text: "Channels", address: "/channels" },
  { keys: "g l", text: "Relays", address: "/relays" },
  { keys: "g f", text: "Feeds", address: "/feeds" },
  { keys: "g u", text: "Updates", address: "/updates" },
  { keys: "g a", text: "Add a receiver", address: "/settings/add" },
  { keys: "t", text: "Light or dark" },
  { keys: "j", text: "Next row of the receivers" },
  { keys: "k", text: "Row before" },
  { keys: "Enter", text: "Open the row" },
];

const SECOND_KEY_MS = 1200;

/** Whether keys belong to what is focused, and not to the page. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

/** Turns key presses into the names of shortcuts, those of two keys, too. */
export class KeyReader {
  private first: { key: string; at: number } | null = null;

  /** The shortcut that this key completes, if it does. */
  press(key: string, now: number): Shortcut | null {
    const before = this.first && now - this.first.at <= SECOND_KEY_MS ? this.first.key : null;
    this.first = null;
    const typed = before ? `${before} ${key}` : key;
    const found = SHORTCUTS.find((one) => one.keys === typed);
    if (found) return found;
    if (!before && SHORTCUTS.some((one) => one.keys.startsWith(`${key} `))) this.first = { key, at: now };
    return null;
  }
}
