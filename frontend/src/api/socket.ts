/**
 * Keeps one dashboard socket open: validated frames out, jittered backoff between attempts, a watchdog for silence.
 *
 * The server sends something at least every HEARTBEAT_MS, so a longer silence means that the path is dead even though
 * the browser hasn't noticed (a suspended laptop, a dropped NAT entry).
 */
import { follows, type Action, type Dashboard } from "../model/dashboard";
import { after, instant, milliseconds, type Instant, type Milliseconds } from "../types/units";
import { parseFrame } from "./schema";

export const HEARTBEAT_MS = 2_000;
export const STALE_AFTER_MS = milliseconds(3 * HEARTBEAT_MS);
const OPEN = 1;
const GIVE_UP_AFTER_MS = 8 * HEARTBEAT_MS;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;

/** Close codes: the first is the server's, the second ours when frames went missing. */
export const CLOSE_UNAUTHENTICATED = 4401;
const CLOSE_OUT_OF_SEQUENCE = 4000;

/** What the page tells the server: how far it has come, so that nothing piles up, and which session was opened. */
export type DashboardRequest =
  { readonly type: "seen"; readonly sequence: number } | { readonly type: "show_turns"; readonly session: string };

export interface SocketSurroundings {
  readonly open: (url: string) => WebSocket;
  readonly now: () => Instant;
  readonly random: () => number;
  readonly later: (run: () => void, delayMs: number) => () => void;
}

export const browserSurroundings: SocketSurroundings = {
  open: (url) => new WebSocket(url),
  now: () => instant(performance.now()),
  random: Math.random,
  later: (run, delayMs) => {
    const timer = setTimeout(run, delayMs);
    return () => clearTimeout(timer);
  },
};

/** Full jitter above a floor, so that a fleet of open pages doesn't return in step after a restart. */
export function retryDelay(attempt: number, random: () => number): Milliseconds {
  const ceiling = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** attempt);
  return milliseconds(Math.round(FIRST_RETRY_MS / 2 + random() * ceiling));
}

export class DashboardSocket {
  private socket: WebSocket | null = null;
  private attempt = 0;
  private downSince: Instant | null = null;
  private isStopped = false;
  private cancelRetry: () => void = () => {};
  private cancelWatchdog: () => void = () => {};

  constructor(
    private readonly url: string,
    private readonly dispatch: (action: Action) => void,
    private readonly state: () => Dashboard,
    private readonly surroundings: SocketSurroundings = browserSurroundings,
  ) {}

  start(): void {
    this.isStopped = false;
    this.connect();
  }

  stop(): void {
    this.isStopped = true;
    this.cancelRetry();
    this.cancelWatchdog();
    this.detach();
  }

  /** Tries at once instead of waiting out the backoff. */
  retryNow(): void {
    if (this.isStopped || this.socket) return;
    this.cancelRetry();
    this.connect();
  }

  /** Lost without a word when the socket isn't open: whoever asks asks again after the next snapshot. */
  send(request: DashboardRequest): void {
    if (this.socket?.readyState === OPEN) this.socket.send(JSON.stringify(request));
  }

  private connect(): void {
    const socket = this.surroundings.open(this.url);
    this.socket = socket;
    socket.addEventListener("message", (event) => this.receive(String(event.data)));
    socket.addEventListener("close", (event) => this.closed(socket, event.code));
    this.watch();
  }

  private receive(data: string): void {
    const parsed = parseFrame(data);
    if ("problem" in parsed) {
      this.stop();
      this.dispatch({ type: "connection", connection: { phase: "incompatible", problem: parsed.problem } });
      return;
    }
    if (!follows(this.state(), parsed.frame)) {
      this.drop(CLOSE_OUT_OF_SEQUENCE);
      return;
    }
    this.attempt = 0;
    this.downSince = null;
    this.watch();
    this.dispatch({ type: "frame", frame: parsed.frame, at: this.surroundings.now() });
    this.send({ type: "seen", sequence: parsed.frame.sequence });
  }

  private watch(): void {
    this.cancelWatchdog();
    this.cancelWatchdog = this.surroundings.later(() => this.drop(CLOSE_OUT_OF_SEQUENCE), GIVE_UP_AFTER_MS);
  }

  /** Gives the socket up without waiting for its close event, which a dead path may delay by minutes. */
  private drop(code: number): void {
    const socket = this.socket;
    if (!socket) return;
    socket.close(code);
    this.closed(socket, code);
  }

  private closed(socket: WebSocket, code: number): void {
    if (socket !== this.socket || this.isStopped) return;
    this.socket = null;
    this.cancelWatchdog();
    if (code === CLOSE_UNAUTHENTICATED) {
      this.isStopped = true;
      this.dispatch({ type: "connection", connection: { phase: "signed_out" } });
      return;
    }
    this.scheduleRetry();
  }

  private scheduleRetry(): void {
    const now = this.surroundings.now();
    this.downSince ??= now;
    const delay = retryDelay(this.attempt, this.surroundings.random);
    this.attempt += 1;
    this.cancelRetry = this.surroundings.later(() => this.connect(), delay);
    const connection = {
      phase: "reconnecting",
      since: this.downSince,
      retryAt: after(now, delay),
      attempt: this.attempt,
    } as const;
    this.dispatch({ type: "connection", connection });
  }

  private detach(): void {
    const socket = this.socket;
    this.socket = null;
    socket?.close(1000);
  }
}
