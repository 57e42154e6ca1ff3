import { useState } from "react";

import { formatCount } from "../model/format";
import { useDashboard } from "../queries/dashboard";
import type { Transfer } from "../types/domain";
import { EmptyState, Panel, Skeleton } from "./Panel";
import { SegmentedControl } from "./SegmentedControl";
import { TransferLanes } from "./TransferLanes";
import { TransferTable } from "./TransferTable";

const filters = [
  { value: "all", label: "All" },
  { value: "P->D", label: "P → D" },
  { value: "D->P", label: "D → P" },
  { value: "trouble", label: "Not completed" },
] as const;

type Filter = (typeof filters)[number]["value"];

function passes(transfer: Transfer, filter: Filter): boolean {
  if (filter === "all") return true;
  return filter === "trouble" ? transfer.outcome !== "completed" : transfer.direction === filter;
}

export function TransfersPanel({ onOpenSession }: { readonly onOpenSession: (session: string) => void }) {
  const isLoaded = useDashboard((state) => state.isLoaded);
  const transfers = useDashboard((state) => state.transfers);
  const [filter, setFilter] = useState<Filter>("all");
  const shown = transfers.filter((transfer) => passes(transfer, filter));
  const tools =
    transfers.length > 0 ? (
      <SegmentedControl label="Show transfers" options={filters} value={filter} onChange={setFilter} />
    ) : null;
  return (
    <Panel
      id="transfers"
      title="Transfers"
      note={transfers.length > 0 ? `newest ${formatCount(transfers.length)}` : null}
      tools={tools}
    >
      {!isLoaded ? <Skeleton rows={4} /> : null}
      {isLoaded && transfers.length === 0 ? <NoTransfers /> : null}
      {transfers.length > 0 ? (
        <>
          <TransferLanes transfers={transfers} />
          <TransferTable transfers={shown} onOpenSession={onOpenSession} />
        </>
      ) : null}
    </Panel>
  );
}

function NoTransfers() {
  return (
    <EmptyState title="No KV has moved yet">
      <p>
        The first turn through the router moves its prefill from P to D. From the second turn of a conversation on, the
        way back from D to P shows here too.
      </p>
      <p className="muted">
        <code>make demo</code> holds such a conversation on the running engines.
      </p>
    </EmptyState>
  );
}
