/** Numbers that carry their unit in the type, so that tokens can't be added to milliseconds by accident. */
declare const unit: unique symbol;

type Unit<Name extends string> = number & { readonly [unit]: Name };

export type Tokens = Unit<"tokens">;
export type Blocks = Unit<"blocks">;
export type Bytes = Unit<"bytes">;
export type Milliseconds = Unit<"milliseconds">;
export type Seconds = Unit<"seconds">;

/** A point on the page's own monotonic clock (performance.now()), never on the wall clock. */
export type Instant = Unit<"instant">;

export const tokens = (value: number): Tokens => value as Tokens;
export const blocks = (value: number): Blocks => value as Blocks;
export const bytes = (value: number): Bytes => value as Bytes;
export const milliseconds = (value: number): Milliseconds => value as Milliseconds;
export const seconds = (value: number): Seconds => value as Seconds;
export const instant = (value: number): Instant => value as Instant;

export const before = (now: Instant, age: Milliseconds): Instant => instant(now - age);
export const after = (now: Instant, remaining: Milliseconds): Instant => instant(now + remaining);
export const since = (then: Instant, now: Instant): Milliseconds => milliseconds(Math.max(0, now - then));
export const until = (then: Instant, now: Instant): Milliseconds => milliseconds(Math.max(0, then - now));

/** Effective rate of a movement in GB/s (10^9 bytes); null when it took no measurable time. */
export function gigabytesPerSecond(size: Bytes, duration: Milliseconds): number | null {
  return duration > 0 ? size / duration / 1e6 : null;
}
