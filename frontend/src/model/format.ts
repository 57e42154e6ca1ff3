/** Numbers as people read them. Pure, locale-fixed (en) so that every operator sees the same digits. */
import type { Blocks, Bytes, Milliseconds, Tokens } from "../types/units";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Three significant digits, without exponent and without trailing zeros that pretend precision. */
function significant(value: number): string {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);
}

export const formatCount = (value: number | Tokens | Blocks): string => whole.format(value);

/** Decimal megabytes, the unit of every size on the page; GB from 10,000 MB on. */
export function formatBytes(size: Bytes): string {
  if (size === 0) return "0 MB";
  const megabytes = size / 1e6;
  return megabytes >= 10_000 ? `${significant(megabytes / 1000)} GB` : `${significant(megabytes)} MB`;
}

export function formatMilliseconds(duration: Milliseconds | null): string {
  if (duration === null) return "–";
  return duration >= 10_000 ? `${significant(duration / 1000)} s` : `${significant(duration)} ms`;
}

export const formatRate = (gigabytesPerSecond: number | null): string =>
  gigabytesPerSecond === null ? "–" : significant(gigabytesPerSecond);

/** A share of 0…1 as a percentage; a share that isn't zero never reads as 0 %. */
export function formatShare(share: number): string {
  if (share > 0 && share < 0.01) return "<1%";
  return `${whole.format(share * 100)}%`;
}

/** How long ago, coarse: `now`, `12 s`, `4 min`, `3 h`, `2 d`. */
export function formatAge(age: Milliseconds): string {
  const seconds = Math.floor(age / 1000);
  if (seconds < 1) return "now";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** Time left as `m:ss` or `h:mm:ss`, rounded up so that 0:00 means over and not "within this second". */
export function formatCountdown(remaining: Milliseconds): string {
  const total = Math.ceil(remaining / 1000);
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor((total % 3600) / 60);
  const seconds = String(total % 60).padStart(2, "0");
  return hours > 0 ? `${hours}:${String(minutes).padStart(2, "0")}:${seconds}` : `${minutes}:${seconds}`;
}

/** The tail of an id: UUIDv7s of one minute share their head, so the tail tells them apart. */
export const shortId = (id: string, length = 8): string => (id.length <= length ? id : id.slice(-length));

/** Wall-clock time of an instant, derived from the server's clock and never from the browser's. */
export function formatServerTime(serverIso: string, offset: number): string {
  const moment = new Date(Date.parse(serverIso) + offset);
  return `${moment.toISOString().slice(0, 10)} ${moment.toISOString().slice(11, 23)} UTC`;
}

export const plural = (count: number, one: string, many = `${one}s`): string =>
  `${formatCount(count)} ${count === 1 ? one : many}`;
