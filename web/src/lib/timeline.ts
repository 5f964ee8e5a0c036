import type { Move } from "./api/types";

export interface Stretch {
  rung: string;
  from: number;
  to: number;
  cause: string | null;
}

/**
 * On which rung a receiver stood when, from its moves and where it stands now. Before the oldest
 * known move it stood where that one says that it came from. Nothing is said of the time before `known`,
 * if there is one: there may have been moves that are not among these.
 */
export function stretches(moves: readonly Move[], now: { rung: string; cause: string | null; since_ms: number | null }, from: number, to: number, enrolled: number | null, known: number | null = null): Stretch[] {
  const begin = Math.max(from, enrolled ?? from, known ?? from);
  if (begin >= to) return [];
  const sorted = [...moves].sort((a, b) => a.at_ms - b.at_ms || a.id - b.id);
  const marks: { at: number; rung: string; cause: string | null }[] = [];
  const first = sorted[0];
  if (first) marks.push({ at: -Infinity, rung: first.from, cause: null });
  for (const move of sorted) marks.push({ at: move.at_ms, rung: move.to, cause: move.cause });
  const last = marks[marks.length - 1];
  if (!last) marks.push({ at: now.since_ms ?? -Infinity, rung: now.rung, cause: now.cause });
  else if (last.rung !== now.rung) marks.push({ at: now.since_ms ?? to, rung: now.rung, cause: now.cause });
  const list: Stretch[] = [];
  marks.forEach((mark, at) => {
    const start = Math.max(begin, mark.at);
    const end = Math.min(to, marks[at + 1]?.at ?? to);
    if (end <= start) return;
    const before = list[list.length - 1];
    if (before && before.rung === mark.rung) before.to = end;
    else list.push({ rung: mark.rung, from: start, to: end, cause: mark.cause });
  });
  return list;
}
