import { memo } from "react";

import { formatBytes, formatCount, formatMilliseconds, formatRate, shortId } from "../model/format";
import type { Transfer } from "../types/domain";
import { gigabytesPerSecond } from "../types/units";
import { Age } from "./Age";
import { OutcomeBadge } from "./Badge";
import { DirectionTag } from "./DirectionTag";
import { TraceLink } from "./TraceLink";

interface TransferTableProps {
  readonly transfers: readonly Transfer[];
  readonly onOpenSession: (session: string) => void;
}

export function TransferTable({ transfers, onOpenSession }: TransferTableProps) {
  return (
    <div className="table-scroll" tabIndex={0} role="region" aria-label="Transfers, newest first">
      <table>
        <caption className="sr-only">Newest transfers in both directions</caption>
        <thead>
          <tr>
            <th scope="col">Ago</th>
            <th scope="col">Direction</th>
            <th scope="col">Source → target</th>
            <th scope="col" className="num">
              Tokens
            </th>
            <th scope="col" className="num">
              Size
            </th>
            <th scope="col" className="num">
              Time
            </th>
            <th scope="col" className="num">
              GB/s
            </th>
            <th scope="col">Outcome</th>
            <th scope="col">Session</th>
            <th scope="col">Trace</th>
          </tr>
        </thead>
        <tbody>
          {transfers.map((transfer) => (
            <TransferRow key={transfer.id} transfer={transfer} onOpenSession={onOpenSession} />
          ))}
          {transfers.length === 0 ? (
            <tr>
              <td colSpan={10} className="muted">
                No transfer of this kind among the newest.
              </td>
            </tr>
          ) : null}
        </tbody>
      </table>
    </div>
  );
}

interface TransferRowProps {
  readonly transfer: Transfer;
  readonly onOpenSession: (session: string) => void;
}

const TransferRow = memo(function TransferRow({ transfer, onOpenSession }: TransferRowProps) {
  return (
    <tr className="row-new" data-transfer={transfer.id}>
      <td className="muted">
        <Age at={transfer.startedAt} />
      </td>
      <td>
        <DirectionTag direction={transfer.direction} />
      </td>
      <td>
        {transfer.source} <span className="muted">→</span> {transfer.target}
      </td>
      <td className="num">{formatCount(transfer.tokens)}</td>
      <td className="num" title={`${formatCount(transfer.blocks)} blocks`}>
        {formatBytes(transfer.bytes)}
      </td>
      <td className="num" title={`of which ${formatMilliseconds(transfer.post_ms)} to post the read`}>
        {formatMilliseconds(transfer.duration_ms)}
      </td>
      <td className="num">{formatRate(gigabytesPerSecond(transfer.bytes, transfer.duration_ms))}</td>
      <td>
        <OutcomeBadge outcome={transfer.outcome} />{" "}
        <span className="reason">{transfer.reason.replaceAll("_", " ")}</span>
      </td>
      <td>
        {transfer.session ? (
          <button
            type="button"
            className="link mono"
            title={transfer.session}
            onClick={() => onOpenSession(transfer.session)}
          >
            {shortId(transfer.session)}
          </button>
        ) : (
          "–"
        )}
      </td>
      <td>
        <TraceLink traceId={transfer.trace_id} />
      </td>
    </tr>
  );
});
