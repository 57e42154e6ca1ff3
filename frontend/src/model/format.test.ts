import { expect, test } from "vitest";

import { bytes, gigabytesPerSecond, milliseconds } from "../types/units";
import * as format from "./format";

test.each([
  [0, "0 MB"],
  [65_536, "0.07 MB"],
  [39_321_600, "39.3 MB"],
  [805_306_368, "805 MB"],
  [12_500_000_000, "12.5 GB"],
])("%i bytes read as %s", (size, text) => expect(format.formatBytes(bytes(size))).toBe(text));

test.each([
  [null, "–"],
  [0.42, "0.42 ms"],
  [12.44, "12.4 ms"],
  [999.6, "1,000 ms"],
  [12_340, "12.3 s"],
])("%s ms read as %s", (duration, text) =>
  expect(format.formatMilliseconds(duration === null ? null : milliseconds(duration))).toBe(text),
);

test.each([
  [0, "0:00"],
  [1, "0:01"],
  [59_001, "1:00"],
  [480_000, "8:00"],
  [3_600_000, "1:00:00"],
  [3_661_000, "1:01:01"],
])("%i ms left count down as %s", (remaining, text) =>
  expect(format.formatCountdown(milliseconds(remaining))).toBe(text),
);

test.each([
  [0, "now"],
  [12_900, "12 s"],
  [60_000, "1 min"],
  [7_200_000, "2 h"],
  [200_000_000, "2 d"],
])("%i ms ago read as %s", (age, text) => expect(format.formatAge(milliseconds(age))).toBe(text));

test("a share that isn't nothing never reads as 0%", () => {
  expect(format.formatShare(0)).toBe("0%");
  expect(format.formatShare(0.004)).toBe("<1%");
  expect(format.formatShare(0.885)).toBe("89%");
});

test("a rate is decimal gigabytes per second, and unknown without time", () => {
  expect(gigabytesPerSecond(bytes(2e9), milliseconds(1000))).toBeCloseTo(2);
  expect(gigabytesPerSecond(bytes(2e9), milliseconds(0))).toBeNull();
  expect(format.formatRate(null)).toBe("–");
});

test("ids are told apart by their tail", () => {
  expect(format.shortId("019347a2-1111-7abc-8def-0123456789ab")).toBe("456789ab");
  expect(format.shortId("short")).toBe("short");
});

test("times of day come from the server's clock, shifted by the page's", () => {
  expect(format.formatServerTime("2026-11-30T12:00:01Z", -1500)).toBe("2026-11-30 11:59:59.500 UTC");
});
