import { useCallback, useState } from "react";

import { FleetStrip } from "../components/FleetStrip";
import { PolicyPanel } from "../components/PolicyPanel";
import { SessionsPanel } from "../components/SessionsPanel";
import { ConnectionBanner, TopBar } from "../components/TopBar";
import { TransfersPanel } from "../components/TransfersPanel";
import { DashboardContext, useDashboard, useDashboardStore } from "../queries/dashboard";

export function DashboardPage() {
  const store = useDashboardStore();
  return (
    <DashboardContext value={store}>
      <a className="skip" href="#transfers">
        Skip to transfers
      </a>
      <TopBar />
      <ConnectionBanner onRetry={store.retryNow} />
      <Sections />
    </DashboardContext>
  );
}

function Sections() {
  const [openSessions, setOpenSessions] = useState<ReadonlySet<string>>(new Set());
  const isLive = useDashboard((state) => state.connection.phase === "live" || state.connection.phase === "connecting");
  const isLoaded = useDashboard((state) => state.isLoaded);

  const toggle = useCallback((session: string) => {
    setOpenSessions((open) =>
      open.has(session) ? new Set([...open].filter((one) => one !== session)) : new Set([...open, session]),
    );
  }, []);
  const reveal = useCallback((session: string) => {
    setOpenSessions((open) => new Set([...open, session]));
    document.getElementById(`session-${session}`)?.scrollIntoView({ block: "center" });
  }, []);

  return (
    <main className={isLive ? "page" : "page page-stale"} aria-busy={!isLoaded}>
      <FleetStrip />
      <div className="columns">
        <div className="column-main">
          <TransfersPanel onOpenSession={reveal} />
          <SessionsPanel openSessions={openSessions} onToggle={toggle} />
        </div>
        <aside className="column-side">
          <PolicyPanel />
        </aside>
      </div>
    </main>
  );
}
