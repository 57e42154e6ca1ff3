import { formatCountdown } from "../model/format";
import { leaseView } from "../model/leases";
import { useSecond } from "../queries/clock";
import type { Placement } from "../types/domain";
import { Badge, EndedBadge } from "./Badge";

/** State of a lease in one cell. */
export function LeaseState({ placement }: { readonly placement: Placement }) {
  const view = leaseView(placement, useSecond());
  switch (view.kind) {
    case "held":
      return <Badge tone="good" icon="held" label="held" />;
    case "pinned":
      return <Badge tone="info" icon="pinned" label="pinned" title="Never expires; evicted last." />;
    case "ending":
      return (
        <Badge tone="quiet" icon="pending" label="ending" title="Its time is up; the engine has not said so yet." />
      );
    case "unknown":
      return <Badge tone="warn" icon="silent" label="unknown" title="Its engine is silent." />;
    case "ended":
      return <EndedBadge state={view.state} reason={view.reason.replaceAll("_", " ")} />;
  }
}

/** Time left, ticking each second by the page's own clock; empty once there is nothing left to count. */
export function Countdown({ placement }: { readonly placement: Placement }) {
  const view = leaseView(placement, useSecond());
  if (view.kind === "pinned") return <span className="muted">no expiry</span>;
  if (view.kind !== "held") return <span className="muted">–</span>;
  return (
    <span className="countdown" role="timer" aria-live="off" data-testid="countdown">
      <span className="countdown-digits">{formatCountdown(view.remaining)}</span>
      <span className="countdown-bar" aria-hidden="true">
        <span style={{ width: `${view.share * 100}%` }} />
      </span>
    </span>
  );
}
