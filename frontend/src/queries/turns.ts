import { use, useEffect } from "react";

import type { Session, Turn } from "../types/domain";
import { DashboardContext, useDashboard } from "./dashboard";

/** The turns of an opened session, newest first: asked for once per snapshot, then kept up by the live updates. */
export function useSessionTurns(session: Session): { turns: readonly Turn[]; isComplete: boolean } {
  const store = use(DashboardContext);
  const all = useDashboard((state) => state.turns);
  const snapshotAt = useDashboard((state) => state.snapshotAt);
  useEffect(() => {
    if (snapshotAt !== null) store?.askForTurns(session.id);
  }, [store, session.id, snapshotAt]);
  const turns = all.filter((turn) => turn.session === session.id);
  return { turns, isComplete: turns.length >= session.num_turns };
}
