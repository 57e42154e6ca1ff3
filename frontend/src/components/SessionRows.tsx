import { memo } from "react";

import { formatBytes, formatCount, formatMilliseconds, formatShare, shortId } from "../model/format";
import type { Session, Turn } from "../types/domain";
import { Age } from "./Age";
import { DecisionBadge } from "./Badge";
import { Countdown, LeaseState } from "./Countdown";
import { Icon } from "./Icon";
import { SessionTurns } from "./SessionTurns";

interface SessionRowsProps {
  readonly session: Session;
  readonly isOpen: boolean;
  readonly onToggle: (session: string) => void;
}

export const SessionRows = memo(function SessionRows({ session, isOpen, onToggle }: SessionRowsProps) {
  const { placement, lastTurn } = session;
  const turnsId = `turns-${session.id}`;
  return (
    <>
      <tr id={`session-${session.id}`} data-session={session.id} className={isOpen ? "row-open" : undefined}>
        <th scope="row">
          <button
            type="button"
            className="disclosure"
            aria-expanded={isOpen}
            aria-controls={turnsId}
            title={`${session.id} · tenant ${session.tenant}${session.model ? ` · ${session.model}` : ""}`}
            onClick={() => onToggle(session.id)}
          >
            <Icon name="chevron" className={isOpen ? "chevron chevron-open" : "chevron"} />
            <span className="mono">{shortId(session.id, 10)}</span>
            <span className="muted">{session.tenant}</span>
          </button>
        </th>
        <td>{placement?.engine ?? <span className="muted">none</span>}</td>
        <td>{placement ? <LeaseState placement={placement} /> : <span className="muted">no lease</span>}</td>
        <td>{placement ? <Countdown placement={placement} /> : <span className="muted">–</span>}</td>
        <td className="num">{placement ? formatCount(placement.tokens) : "–"}</td>
        <td className="num">{placement ? formatCount(placement.blocks) : "–"}</td>
        <td className="num">{placement ? formatBytes(placement.bytes) : "–"}</td>
        <td className="num">{formatCount(session.num_turns)}</td>
        <td>
          <DecisionBadge code={lastTurn?.prefill_decision ?? ""} />
        </td>
        <td>
          <DecisionBadge code={lastTurn?.decode_decision ?? ""} />
        </td>
        <td className="num">{lastTurn ? <Reused turn={lastTurn} /> : "–"}</td>
        <td className="num">{formatMilliseconds(lastTurn?.ttft_ms ?? null)}</td>
        <td className="muted">
          <Age at={session.activeAt} />
        </td>
      </tr>
      {isOpen ? (
        <tr className="row-turns" id={turnsId}>
          <td colSpan={13}>
            <SessionTurns session={session} />
          </td>
        </tr>
      ) : null}
    </>
  );
});

export function Reused({ turn }: { readonly turn: Turn }) {
  if (turn.prompt_tokens === 0) return <span className="muted">–</span>;
  const title = `${formatCount(turn.reused_tokens)} of ${formatCount(turn.prompt_tokens)} prompt tokens were not recomputed`;
  return <span title={title}>{formatShare(turn.reused_tokens / turn.prompt_tokens)}</span>;
}
