import { describe, expect, it } from "vitest";
import { PageCache, pagesOf, rowsInSight, scrollTo } from "../lib/virtual";

describe("rows in sight", () => {
  it("draws a few of 100,000", () => {
    const top = rowsInSight(0, 600, 44, 100_000);
    expect(top).toEqual({ first: 0, end: 22, height: 4_400_000 });
    const middle = rowsInSight(2_200_000, 600, 44, 100_000);
    expect(middle.first).toBe(50_000 - 8);
    expect(middle.end - middle.first).toBeLessThan(40);
    const bottom = rowsInSight(4_400_000 - 600, 600, 44, 100_000);
    expect(bottom.end).toBe(100_000);
  });

  it("covers every row that can be seen, wherever it is scrolled to", () => {
    for (let at = 0; at < 20_000; at += 137) {
      const { first, end } = rowsInSight(at, 517, 44, 500, 2);
      const reachable = Math.min(at, 500 * 44 - 517);
      expect(first * 44).toBeLessThanOrEqual(reachable);
      expect(end * 44).toBeGreaterThanOrEqual(reachable + 517);
    }
  });

  it("bears scrolling beyond the end, and nothing at all", () => {
    expect(rowsInSight(9e9, 600, 44, 10)).toEqual({ first: 0, end: 10, height: 440 });
    expect(rowsInSight(-50, 600, 44, 10).first).toBe(0);
    expect(rowsInSight(0, 600, 44, 0)).toEqual({ first: 0, end: 0, height: 0 });
  });

  it("knows the pages", () => {
    expect(pagesOf(0, 22, 100)).toEqual([0]);
    expect(pagesOf(95, 120, 100)).toEqual([0, 1]);
    expect(pagesOf(100, 200, 100)).toEqual([1]);
    expect(pagesOf(5, 5, 100)).toEqual([]);
  });

  it("scrolls no further than it must", () => {
    expect(scrollTo(3, 0, 440, 44)).toBe(0);
    expect(scrollTo(10, 0, 440, 44)).toBe(44);
    expect(scrollTo(2, 440, 440, 44)).toBe(88);
  });
});

describe("the cache of pages", () => {
  it("finds rows, forgets the least used page, and keeps what is in sight", () => {
    const cache = new PageCache<number>(10, 3);
    for (const page of [0, 1, 2]) cache.put(page, Array.from({ length: 10 }, (_, at) => page * 10 + at));
    cache.touch([0]);
    cache.put(3, [30]);
    expect(cache.has(1)).toBe(false);
    expect(cache.row(5)).toBe(5);
    expect(cache.row(15)).toBeUndefined();
    expect(cache.row(30)).toBe(30);
    expect(cache.row(31)).toBeUndefined();
  });

  it("tells each row with its place, and lets all pages go but some", () => {
    const cache = new PageCache<string>(2, 3);
    cache.put(0, ["a", "b"]);
    cache.put(2, ["e"]);
    const seen: string[] = [];
    cache.each((row, index) => seen.push(`${index}${row}`));
    expect(seen).toEqual(["0a", "1b", "4e"]);
    cache.keep([2, 7]);
    expect([cache.has(0), cache.has(2), cache.has(7)]).toEqual([false, true, false]);
  });

  it("replaces rows in place and says whether there was one", () => {
    const cache = new PageCache<{ id: number; n: number }>(2, 3);
    const first = { id: 1, n: 0 };
    cache.put(0, [first, { id: 2, n: 0 }]);
    expect(cache.update((row) => row)).toBe(false);
    expect(cache.update((row) => (row.id === 2 ? { ...row, n: 7 } : row))).toBe(true);
    expect(cache.row(0)).toBe(first);
    expect(cache.row(1)?.n).toBe(7);
  });
});
