// The arithmetic of a table of which only the rows in sight exist.

export interface Window {
  /** The first row to draw. */
  first: number;
  /** The row behind the last one to draw. */
  end: number;
  /** The height of the whole table. */
  height: number;
}

/** Which rows to draw, with some more on both sides. */
export function rowsInSight(scrollTop: number, viewport: number, rowHeight: number, total: number, more = 8): Window {
  const height = total * rowHeight;
  if (total <= 0 || rowHeight <= 0) return { first: 0, end: 0, height: 0 };
  const top = Math.min(Math.max(0, scrollTop), Math.max(0, height - viewport));
  const first = Math.max(0, Math.floor(top / rowHeight) - more);
  const end = Math.min(total, Math.ceil((top + viewport) / rowHeight) + more);
  return { first, end, height };
}

/** The pages (of so many rows) that hold these rows. */
export function pagesOf(first: number, end: number, size: number): number[] {
  if (end <= first) return [];
  const pages: number[] = [];
  for (let page = Math.floor(first / size); page <= Math.floor((end - 1) / size); page += 1) pages.push(page);
  return pages;
}

/** Where to scroll so that a row is in sight, or nowhere if it is. */
export function scrollTo(row: number, scrollTop: number, viewport: number, rowHeight: number): number {
  const top = row * rowHeight;
  if (top < scrollTop) return top;
  if (top + rowHeight > scrollTop + viewport) return top + rowHeight - viewport;
  return scrollTop;
}

/** Pages of rows by number, of which the least recently used go first. */
export class PageCache<T> {
  private pages = new Map<number, T[]>();

  constructor(
    readonly size: number,
    readonly most: number,
  ) {}

  has(page: number): boolean {
    return this.pages.has(page);
  }

  put(page: number, rows: T[]): void {
    this.pages.delete(page);
    this.pages.set(page, rows);
    while (this.pages.size > this.most) {
      const oldest = this.pages.keys().next().value;
      if (oldest === undefined) break;
      this.pages.delete(oldest);
    }
  }

  row(index: number): T | undefined {
    return this.pages.get(Math.floor(index / this.size))?.[index % this.size];
  }

  /** Marks pages as used, so that they stay. */
  touch(pages: readonly number[]): void {
    for (const page of pages) {
      const rows = this.pages.get(page);
      if (rows) this.put(page, rows);
    }
  }

  /** Replaces rows in place where `change` returns another one. Returns whether there was any. */
  update(change: (row: T) => T): boolean {
    let isOther = false;
    for (const [page, rows] of this.pages) {
      let next: T[] | null = null;
      rows.forEach((row, at) => {
        const other = change(row);
        if (other === row) return;
        next ??= rows.slice();
        next[at] = other;
      });
      if (next) {
        this.pages.set(page, next);
        isOther = true;
      }
    }
    return isOther;
  }

  /** Lets all other pages go. */
  keep(pages: readonly number[]): void {
    for (const page of [...this.pages.keys()]) if (!pages.includes(page)) this.pages.delete(page);
  }

  /** Every row that is there, with its place in the list. */
  each(look: (row: T, index: number) => void): void {
    for (const [page, rows] of this.pages) rows.forEach((row, at) => look(row, page * this.size + at));
  }

  clear(): void {
    this.pages.clear();
  }
}
