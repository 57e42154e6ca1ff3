import { useEffect, useSyncExternalStore } from "react";

import { instant, type Instant } from "../types/units";

/** One timer per rate for the whole page, so that all countdowns tick together and none runs on its own. */
class Clock {
  private now: Instant = instant(performance.now());
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setInterval> | null = null;

  constructor(private readonly everyMs: number) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    this.timer ??= setInterval(this.tick, this.everyMs);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size > 0 || this.timer === null) return;
      clearInterval(this.timer);
      this.timer = null;
    };
  };

  readonly read = (): Instant => this.now;

  readonly tick = (): void => {
    this.now = instant(performance.now());
    for (const listener of this.listeners) listener();
  };
}

const secondClock = new Clock(1_000);
const smoothClock = new Clock(250);

function useClock(clock: Clock): Instant {
  const now = useSyncExternalStore(clock.subscribe, clock.read);
  // A component that mounts after a quiet hour must not start from the clock's last tick.
  useEffect(() => clock.tick(), [clock]);
  return now;
}

/** Ticks each second: countdowns and ages. */
export const useSecond = (): Instant => useClock(secondClock);

/** Ticks four times a second: what moves, and what is measured in fractions of a second. */
export const useSmooth = (): Instant => useClock(smoothClock);
