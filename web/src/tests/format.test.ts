import { describe, expect, it } from "vitest";
import { age, ago, bitRate, bytes, count, counted, cut, duration, moment, perMinute, share, times, UNKNOWN } from "../lib/format";

describe("numbers carry their units", () => {
  it("counts", () => {
    expect(count(1234567)).toBe("1,234,567");
    expect(count(null)).toBe(UNKNOWN);
    expect(count(Number.NaN)).toBe(UNKNOWN);
    expect(counted(1, "update")).toBe("1 update");
    expect(counted(0, "update")).toBe("0 updates");
    expect(counted(2, "entry", "entries")).toBe("2 entries");
  });

  it("bytes by powers of 1,000, without 1,000 kB", () => {
    expect(bytes(0)).toBe("0 B");
    expect(bytes(999)).toBe("999 B");
    expect(bytes(1000)).toBe("1 kB");
    expect(bytes(1540)).toBe("1.5 kB");
    expect(bytes(999_499)).toBe("999 kB");
    expect(bytes(999_600)).toBe("1 MB");
    expect(bytes(18e12)).toBe("18 TB");
    expect(bytes(-1500)).toBe("−1.5 kB");
    expect(bytes(undefined)).toBe(UNKNOWN);
  });

  it("durations in two units at most", () => {
    expect(duration(0)).toBe("0 ms");
    expect(duration(3.24)).toBe("3.2 ms");
    expect(duration(9.96)).toBe("10 ms");
    expect(duration(999.7)).toBe("1 s");
    expect(duration(1440)).toBe("1.4 s");
    expect(duration(59_960)).toBe("1 min");
    expect(duration(250_000)).toBe("4 min 10 s");
    expect(duration(7_500_000)).toBe("2 h 5 min");
    expect(duration(2 * 86_400_000 + 3 * 3_600_000)).toBe("2 d 3 h");
    expect(duration(-5)).toBe("0 ms");
    expect(duration(null)).toBe(UNKNOWN);
  });

  it("ages, in one unit", () => {
    expect(age(0, 12_900)).toBe("12 s");
    expect(age(0, 3_599_000)).toBe("59 min");
    expect(age(0, 100_000_000)).toBe("27 h");
    expect(age(0, 300_000_000)).toBe("3 d");
    expect(ago(10_000, 10_500)).toBe("just now");
    expect(ago(0, 61_000)).toBe("1 min ago");
    expect(ago(70_000, 10_000)).toBe("in 1 min");
  });

  it("never claims all or nothing when it is not so", () => {
    expect(share(5000, 5000)).toBe("100 %");
    expect(share(49_999, 50_000)).toBe("> 99.99 %");
    expect(share(4999, 5000)).toBe("99.98 %");
    expect(share(4996, 5000)).toBe("99.92 %");
    expect(share(4960, 5000)).toBe("99.2 %");
    expect(share(1, 5000)).toBe("< 0.1 %");
    expect(share(0, 5000)).toBe("0 %");
    expect(share(123, 5000)).toBe("2.5 %");
    expect(share(1, 0)).toBe(UNKNOWN);
  });

  it("rates", () => {
    expect(times(53.4)).toBe("53 ×");
    expect(perMinute(1.26)).toBe("1.3 /min");
    expect(bitRate(1250, 1000)).toBe("10 kbit/s");
    expect(bitRate(1250, 0)).toBe(UNKNOWN);
  });

  it("shows the date of other days", () => {
    const now = new Date(2026, 10, 21, 17, 0, 0).getTime();
    expect(moment(now - 1000, now)).toBe("16:59:59");
    expect(moment(now - 30 * 3_600_000, now)).toMatch(/^20 Nov 11:00$/);
  });

  it("cuts texts, and never a pair of surrogates", () => {
    expect(cut("abc", 3)).toBe("abc");
    expect(cut("abcd", 3)).toBe("abc…");
    expect(cut("ab😀d", 3)).toBe("ab…");
  });
});
