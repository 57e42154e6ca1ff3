import { formatBytes, formatCount, formatMilliseconds, formatRate, plural } from "../model/format";
import { lanesOf, totalsOf, WINDOW_MS, type Lane, type Mark } from "../model/lanes";
import { useSmooth } from "../queries/clock";
import type { Direction, Transfer } from "../types/domain";
import { gigabytesPerSecond, type Instant } from "../types/units";
import { DirectionTag } from "./DirectionTag";

const LANE_HEIGHT = 30;

/** The last minute, now at the right edge: one lane per directed pair, one arrowhead per NIXL movement. */
export function TransferLanes({ transfers }: { readonly transfers: readonly Transfer[] }) {
  const now = useSmooth();
  const { lanes, numHidden } = lanesOf(transfers, now);
  return (
    <div className="lanes">
      <div className="totals">
        <Totals transfers={transfers} direction="P->D" now={now} />
        <Totals transfers={transfers} direction="D->P" now={now} />
      </div>
      <div
        className="lane-grid"
        role="img"
        aria-label="Transfers of the last minute by pair; the table below lists them."
      >
        {lanes.map((lane) => (
          <LaneRow key={lane.key} lane={lane} />
        ))}
        <div className="lane-axis" aria-hidden="true">
          <span>{WINDOW_MS / 1000} s ago</span>
          <span>45</span>
          <span>30</span>
          <span>15</span>
          <span>now</span>
        </div>
      </div>
      {numHidden > 0 ? (
        <p className="footnote">{plural(numHidden, "quieter pair")} not drawn; the table has them.</p>
      ) : null}
    </div>
  );
}

interface TotalsProps {
  readonly transfers: readonly Transfer[];
  readonly direction: Direction;
  readonly now: Instant;
}

function Totals({ transfers, direction, now }: TotalsProps) {
  const totals = totalsOf(transfers, direction, now);
  return (
    <div className={`total total-${direction === "P->D" ? "forward" : "return"}`}>
      <DirectionTag direction={direction} isLong />
      <dl>
        <Figure name="in 60 s" value={formatCount(totals.count)} />
        <Figure name="tokens" value={formatCount(totals.tokens)} />
        <Figure name="moved" value={formatBytes(totals.bytes)} />
        <Figure name="median" value={formatMilliseconds(totals.medianMs)} />
        <Figure name="GB/s" value={formatRate(totals.rate)} />
        <Figure name="not completed" value={formatCount(totals.numTroubled)} isTrouble={totals.numTroubled > 0} />
      </dl>
    </div>
  );
}

function Figure({ name, value, isTrouble }: { name: string; value: string; isTrouble?: boolean }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd className={isTrouble ? "trouble" : undefined}>{value}</dd>
    </div>
  );
}

function LaneRow({ lane }: { readonly lane: Lane }) {
  const isForward = lane.direction === "P->D";
  return (
    <div className={`lane lane-${isForward ? "forward" : "return"}`}>
      <div className="lane-label">
        <DirectionTag direction={lane.direction} />
        <span className="lane-pair" title={`${lane.source} to ${lane.target}`}>
          {lane.source} <span aria-hidden="true">→</span> {lane.target}
        </span>
      </div>
      <div className="lane-track">
        {lane.marks.map((mark) => (
          <MarkShape key={mark.transfer.id} mark={mark} isForward={isForward} />
        ))}
      </div>
    </div>
  );
}

/** Arrowhead by direction, height by size; a movement that didn't complete is hollow and crossed. */
function MarkShape({ mark, isForward }: { readonly mark: Mark; readonly isForward: boolean }) {
  const { transfer, position, width, weight } = mark;
  const height = 8 + weight * (LANE_HEIGHT - 12);
  const isDone = transfer.outcome === "completed";
  const rate = formatRate(gigabytesPerSecond(transfer.bytes, transfer.duration_ms));
  const title =
    `${transfer.source} → ${transfer.target}: ${formatCount(transfer.tokens)} tokens, ${formatBytes(transfer.bytes)} ` +
    `in ${formatMilliseconds(transfer.duration_ms)} (${rate} GB/s), ${transfer.outcome}`;
  return (
    <span
      className={isDone ? "mark" : "mark mark-trouble"}
      style={{ right: `${(1 - position - width) * 100}%`, width: `max(10px, ${width * 100}%)`, height: `${height}px` }}
    >
      <svg viewBox="0 0 10 10" preserveAspectRatio="none" width="100%" height="100%">
        <title>{title}</title>
        <path
          d={isForward ? "M0 0 6 0 10 5 6 10 0 10 3 5z" : "M10 0 4 0 0 5 4 10 10 10 7 5z"}
          vectorEffect="non-scaling-stroke"
        />
        {isDone ? null : <path d="M2 1 8 9M8 1 2 9" vectorEffect="non-scaling-stroke" />}
      </svg>
    </span>
  );
}
