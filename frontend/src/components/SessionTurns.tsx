import { divergenceText } from "../model/divergence";
import { formatCount, formatMilliseconds, plural } from "../model/format";
import { useSessionTurns } from "../queries/turns";
import type { Session, Turn } from "../types/domain";
import { Age } from "./Age";
import { Badge, DecisionBadge } from "./Badge";
import { Reused } from "./SessionRows";
import { TraceLink } from "./TraceLink";

/** The turns of one session, newest first, each leg with the reason for how it got its KV. */
export function SessionTurns({ session }: { readonly session: Session }) {
  const { turns, isComplete } = useSessionTurns(session);
  if (turns.length === 0) return <p className="muted turns-note">No turn of this session has been recorded yet.</p>;
  return (
    <div className="turns">
      <table>
        <caption className="sr-only">Turns of session {session.id}</caption>
        <thead>
          <tr>
            <th scope="col" className="num">
              Turn
            </th>
            <th scope="col">Ago</th>
            <th scope="col" className="num">
              Prompt tokens
            </th>
            <th scope="col" className="num">
              Reused
            </th>
            <th scope="col">Prefill</th>
            <th scope="col">Decode</th>
            <th scope="col" className="num">
              TTFT
            </th>
            <th scope="col" className="num">
              Whole turn
            </th>
            <th scope="col">Status</th>
            <th scope="col">Trace</th>
          </tr>
        </thead>
        <tbody>
          {turns.map((turn) => (
            <TurnRow key={turn.id} turn={turn} />
          ))}
        </tbody>
      </table>
      {isComplete ? null : (
        <p className="muted turns-note">
          Showing {plural(turns.length, "turn")} of {formatCount(session.num_turns)}.{" "}
          <a href={`/api/v1/sessions/${encodeURIComponent(session.id)}/turns`}>All as JSON</a>
        </p>
      )}
    </div>
  );
}

function Divergence({ turn }: { readonly turn: Turn }) {
  const divergence = divergenceText(turn);
  if (divergence === null) return null;
  return (
    <span className="divergence" title={divergence.help}>
      {divergence.label}
      {turn.diverged_at_token === null ? null : ` · token ${formatCount(turn.diverged_at_token)}`}
    </span>
  );
}

function TurnRow({ turn }: { readonly turn: Turn }) {
  return (
    <tr>
      <td className="num">{turn.index ?? "–"}</td>
      <td className="muted">
        <Age at={turn.startedAt} />
      </td>
      <td className="num">{formatCount(turn.prompt_tokens)}</td>
      <td className="num">
        {formatCount(turn.reused_tokens)}{" "}
        <span className="muted">
          (<Reused turn={turn} />)
        </span>
      </td>
      <td>
        <DecisionBadge code={turn.prefill_decision} /> <span className="muted">{turn.prefill_engine}</span>
        <Divergence turn={turn} />
      </td>
      <td>
        <DecisionBadge code={turn.decode_decision} /> <span className="muted">{turn.decode_engine}</span>
      </td>
      <td className="num">{formatMilliseconds(turn.ttft_ms)}</td>
      <td className="num">{formatMilliseconds(turn.duration_ms)}</td>
      <td>
        {turn.status === "error" ? (
          <Badge tone="bad" icon="down" label="error" />
        ) : (
          <span className="muted">{turn.status}</span>
        )}
      </td>
      <td>
        <TraceLink traceId={turn.trace_id} />
      </td>
    </tr>
  );
}
