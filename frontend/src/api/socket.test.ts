import { beforeEach, describe, expect, test } from "vitest";

import { initialDashboard, reduce, type Dashboard } from "../model/dashboard";
import { wireSnapshot, wireUpdate } from "../model/fixtures";
import { instant } from "../types/units";
import { CLOSE_UNAUTHENTICATED, DashboardSocket, retryDelay } from "./socket";

/** The browser's side of a socket, driven by the test. */
class ScriptedSocket extends EventTarget {
  readonly sent: unknown[] = [];
  closedWith: number | null = null;
  readyState = 1;

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(code: number): void {
    this.closedWith = code;
    this.readyState = 3;
  }

  deliver(wire: unknown): void {
    this.dispatchEvent(Object.assign(new Event("message"), { data: JSON.stringify(wire) }));
  }

  lose(code: number): void {
    this.dispatchEvent(Object.assign(new Event("close"), { code }));
  }
}

let state: Dashboard;
let sockets: ScriptedSocket[];
let timers: { run: () => void; delayMs: number }[];
let socket: DashboardSocket;

const last = () => {
  const one = sockets.at(-1);
  if (!one) throw new Error("no socket was opened");
  return one;
};

beforeEach(() => {
  state = initialDashboard;
  sockets = [];
  timers = [];
  socket = new DashboardSocket(
    "ws://127.0.0.1/ws/dashboard/",
    (action) => {
      state = reduce(state, action);
    },
    () => state,
    {
      open: () => {
        const one = new ScriptedSocket();
        sockets.push(one);
        return one as unknown as WebSocket;
      },
      now: () => instant(1000),
      random: () => 0.5,
      later: (run, delayMs) => {
        const timer = { run, delayMs };
        timers.push(timer);
        return () => {
          timers = timers.filter((other) => other !== timer);
        };
      },
    },
  );
  socket.start();
});

describe("a connection", () => {
  test("is live with its first frame and confirms each one", () => {
    last().deliver(wireSnapshot());
    last().deliver(wireUpdate(2));
    expect(state.connection.phase).toBe("live");
    expect(last().sent).toEqual([
      { type: "seen", sequence: 1 },
      { type: "seen", sequence: 2 },
    ]);
  });

  test("that is lost is tried again, and shows what it showed meanwhile", () => {
    last().deliver(wireSnapshot());
    last().lose(1006);
    expect(state.connection).toMatchObject({ phase: "reconnecting", attempt: 1, since: 1000 });
    expect(state.isLoaded).toBe(true);
    timers[0]?.run();
    last().deliver(wireSnapshot());
    expect(sockets).toHaveLength(2);
    expect(state.connection.phase).toBe("live");
  });

  test("that skips a frame starts over", () => {
    last().deliver(wireSnapshot());
    last().deliver(wireUpdate(3));
    expect(sockets[0]?.closedWith).toBe(4000);
    expect(state.connection.phase).toBe("reconnecting");
    expect(state.sequence).toBe(1);
  });

  test("that stays silent is given up by the watchdog", () => {
    last().deliver(wireSnapshot());
    timers[0]?.run();
    expect(sockets[0]?.closedWith).toBe(4000);
    expect(state.connection.phase).toBe("reconnecting");
  });

  test("that the server refuses for want of a login is not tried again", () => {
    last().lose(CLOSE_UNAUTHENTICATED);
    expect(state.connection.phase).toBe("signed_out");
    expect(timers).toEqual([]);
  });

  test("that brings what the page can't read stops with the reason", () => {
    last().deliver({ ...wireSnapshot(), engines: [{ name: 3 }] });
    expect(state.connection).toMatchObject({ phase: "incompatible" });
    expect(sockets[0]?.closedWith).toBe(1000);
  });

  test("is tried at once on demand, never twice at a time", () => {
    socket.retryNow();
    expect(sockets).toHaveLength(1);
    last().lose(1006);
    socket.retryNow();
    expect(sockets).toHaveLength(2);
    expect(timers).toHaveLength(1);
  });

  test("ends for good when the page goes", () => {
    socket.stop();
    last().lose(1000);
    expect(timers).toEqual([]);
    expect(sockets).toHaveLength(1);
  });
});

test("retries spread out and never wait longer than the ceiling", () => {
  const delays = [0, 1, 2, 3, 10].map((attempt) => retryDelay(attempt, () => 1));
  expect(delays).toEqual([750, 1250, 2250, 4250, 10_250]);
  expect(retryDelay(10, () => 0)).toBe(250);
});
