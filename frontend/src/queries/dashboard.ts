import { createContext, use, useEffect, useState, useSyncExternalStore } from "react";

import { dashboardUrl } from "../api/page";
import { DashboardSocket } from "../api/socket";
import { initialDashboard, reduce, type Action, type Dashboard } from "../model/dashboard";
import type { Instant } from "../types/units";

/** Holds the page's state outside React, so that the socket writes it and each component reads what it shows. */
export class DashboardStore {
  private state = initialDashboard;
  private readonly listeners = new Set<() => void>();
  private readonly socket: DashboardSocket;

  constructor(url: string) {
    this.socket = new DashboardSocket(url, this.dispatch, () => this.state);
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly read = (): Dashboard => this.state;
  readonly retryNow = (): void => this.socket.retryNow();
  readonly askForTurns = (session: string): void => this.socket.send({ type: "show_turns", session });

  start(): () => void {
    const retry = () => {
      if (document.visibilityState === "visible") this.socket.retryNow();
    };
    window.addEventListener("online", retry);
    document.addEventListener("visibilitychange", retry);
    this.socket.start();
    return () => {
      window.removeEventListener("online", retry);
      document.removeEventListener("visibilitychange", retry);
      this.socket.stop();
    };
  }

  private readonly dispatch = (action: Action): void => {
    this.state = reduce(this.state, action);
    for (const listener of this.listeners) listener();
  };
}

export const DashboardContext = createContext<DashboardStore | null>(null);

export function useDashboardStore(): DashboardStore {
  const [store] = useState(() => new DashboardStore(dashboardUrl(window.location)));
  useEffect(() => store.start(), [store]);
  return store;
}

/** A part of the state; the component renders again only when that part changes. */
export function useDashboard<Part>(select: (state: Dashboard) => Part): Part {
  const store = use(DashboardContext);
  if (!store) throw new Error("useDashboard needs a DashboardContext around it");
  return useSyncExternalStore(store.subscribe, () => select(store.read()));
}

/** Until when the page knows anything: now while live, the last frame's arrival otherwise. Ages of silence stop there. */
export function useKnownUntil(now: Instant): Instant {
  const isLive = useDashboard((state) => state.connection.phase === "live");
  const lastFrameAt = useDashboard((state) => state.lastFrameAt);
  return isLive || lastFrameAt === null ? now : lastFrameAt;
}
