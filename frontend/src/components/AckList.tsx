import { ackView, type AckView } from "../model/acks";
import { formatAge, formatMilliseconds } from "../model/format";
import { formatPolicyValue } from "../model/policy";
import { useSmooth } from "../queries/clock";
import { useKnownUntil } from "../queries/dashboard";
import type { Ack } from "../types/domain";
import { Badge } from "./Badge";

/** One line per enforcer, worst first when they differ, so that trouble is seen in a long fleet. */
export function AckList({ acks }: { readonly acks: readonly Ack[] }) {
  const now = useKnownUntil(useSmooth());
  if (acks.length === 0) {
    return <p className="muted">No engine or router has connected yet; a revision waits for them here.</p>;
  }
  const rows = acks
    .map((ack) => ({ ack, view: ackView(ack, now) }))
    .toSorted((a, b) => severity[a.view.kind] - severity[b.view.kind] || (a.ack.enforcer < b.ack.enforcer ? -1 : 1));
  return (
    <ul className="acks">
      {rows.map(({ ack, view }) => (
        <li key={`${ack.kind} ${ack.enforcer}`} data-enforcer={ack.enforcer} data-ack={view.kind}>
          <span className="ack-name" title={ack.enforcer}>
            <span className={`role role-${ack.kind}`} aria-hidden="true">
              {ack.kind === "router" ? "R" : "E"}
            </span>
            {ack.enforcer} <span className="sr-only">({ack.kind})</span>
          </span>
          <AckBadge view={view} />
          <AckDetails ack={ack} />
        </li>
      ))}
    </ul>
  );
}

const severity: Readonly<Record<AckView["kind"], number>> = {
  drifted: 0,
  unacknowledged: 1,
  waiting: 2,
  unsupported: 3,
  acked: 4,
};

function AckBadge({ view }: { readonly view: AckView }) {
  switch (view.kind) {
    case "waiting":
      return <Badge tone="info" icon="pending" label={`waiting, ${(view.waited / 1000).toFixed(1)} s`} />;
    case "acked":
      return (
        <Badge
          tone="good"
          icon="ready"
          label={view.latency === null ? "acked" : `acked in ${formatMilliseconds(view.latency)}`}
        />
      );
    case "drifted":
      return <Badge tone="bad" icon="warning" label="drifted" title="The values read back differ from the policy." />;
    case "unsupported":
      return (
        <Badge
          tone="warn"
          icon="warning"
          label="partly supported"
          title="Differs only in fields that its vLLM can't do."
        />
      );
    case "unacknowledged": {
      const waited = view.waited === null ? "" : `, ${formatAge(view.waited)}`;
      return <Badge tone="bad" icon="silent" label={`unacknowledged${waited}`} title="No answer within 3 s." />;
    }
  }
}

function AckDetails({ ack }: { readonly ack: Ack }) {
  if (ack.drift.length === 0 && ack.unsupported_fields.length === 0) return null;
  return (
    <div className="ack-details">
      {ack.drift.map(({ field, expected, actual }) => (
        <div key={field}>
          <code>{field}</code> is {formatPolicyValue(field, actual)}, should be {formatPolicyValue(field, expected)}
        </div>
      ))}
      {ack.unsupported_fields.length > 0 ? (
        <div className="muted">
          Not supported by this vLLM: <code>{ack.unsupported_fields.join(", ")}</code>
        </div>
      ) : null}
    </div>
  );
}
