import { memo } from "react";

import { blockUsage, type BlockUsage } from "../model/engines";
import { formatAge, formatBytes, formatCount, formatShare, plural, shortId } from "../model/format";
import { useSecond } from "../queries/clock";
import { useKnownUntil } from "../queries/dashboard";
import type { Agent, Engine } from "../types/domain";
import { bytes, since } from "../types/units";
import { ApproveButton } from "./ApproveButton";
import { EngineBadge } from "./Badge";
import { Icon } from "./Icon";

interface EngineCardProps {
  readonly engine: Engine;
  readonly agent: Agent | undefined;
}

const roleLetters = { prefill: "P", decode: "D", "": "?" } as const;

export const EngineCard = memo(function EngineCard({ engine, agent }: EngineCardProps) {
  return (
    <li className={`engine engine-${engine.role || "unknown"}`} data-state={engine.state}>
      <div className="engine-head">
        <span className="role" title={engine.role || "role not reported yet"}>
          {roleLetters[engine.role]}
          <span className="sr-only">{engine.role}</span>
        </span>
        <h3>{engine.name}</h3>
        <EngineBadge engine={engine} />
      </div>
      <p className="engine-model" title={engine.model}>
        {engine.model || "model not reported yet"}
      </p>
      {engine.load && engine.load.num_blocks > 0 ? (
        <BlockUsageBar usage={blockUsage(engine.load)} bytesPerBlock={engine.bytes_per_block} />
      ) : (
        <p className="muted engine-noload">No load reported.</p>
      )}
      {engine.state === "pending" ? <ApproveButton engine={engine.name} /> : null}
      <dl className="facts">
        <Fact name="running" value={engine.load ? formatCount(engine.load.num_running) : "–"} />
        <Fact name="waiting" value={engine.load ? formatCount(engine.load.num_waiting) : "–"} />
        <Fact name="leases" value={engine.load ? formatCount(engine.load.num_leases) : "–"} />
        <Fact
          name="unread"
          value={engine.load ? plural(engine.load.num_unread_blocks, "block") : "–"}
          title="KV blocks in leases that no turn has read so far. They are worth their memory only if one does."
        />
        <AgentFacts agent={agent} />
        <Fact
          name="incarnation"
          value={engine.incarnation ? shortId(engine.incarnation) : "–"}
          title={engine.incarnation || "Not seen yet"}
        />
      </dl>
    </li>
  );
});

function Fact({ name, value, title, isTrouble }: { name: string; value: string; title?: string; isTrouble?: boolean }) {
  return (
    <div title={title}>
      <dt>{name}</dt>
      <dd className={isTrouble ? "trouble" : undefined}>
        {isTrouble ? <Icon name="warning" /> : null}
        {value}
      </dd>
    </div>
  );
}

function AgentFacts({ agent }: { readonly agent: Agent | undefined }) {
  const now = useKnownUntil(useSecond());
  if (!agent) return <Fact name="agent" value="never seen" isTrouble />;
  const age = agent.seenAt === null ? null : since(agent.seenAt, now);
  const seen = age === null ? "never" : age < 5_000 && agent.connected ? "now" : `${formatAge(age)} ago`;
  const dropped = agent.num_dropped_events;
  return (
    <>
      <Fact
        name="agent lag"
        value={agent.num_pending_events === 0 ? "none" : plural(agent.num_pending_events, "event")}
        title="Events that wait at the agent to be stored here."
      />
      {dropped > 0 ? (
        <Fact
          name="dropped"
          value={plural(dropped, "event")}
          title="Events lost to a full buffer since the agent started."
          isTrouble
        />
      ) : null}
      <Fact
        name="last seen"
        value={seen}
        isTrouble={!agent.connected}
        title={agent.connected ? "Connected" : "Not connected"}
      />
    </>
  );
}

const parts = [
  { key: "other", label: "in use", title: "Running requests and the engine's own prefix cache" },
  { key: "leased", label: "leased", title: "Held by leases for later turns or hand-overs" },
  { key: "quarantined", label: "quarantined", title: "Destinations of given-up reads that have not ended yet" },
  { key: "free", label: "free", title: "Free KV blocks" },
] as const;

function BlockUsageBar({ usage, bytesPerBlock }: { readonly usage: BlockUsage; readonly bytesPerBlock: number }) {
  return (
    <div className="usage">
      <div className="usage-head">
        <span>KV blocks</span>
        <span className="muted">
          {formatCount(usage.total)} · {formatBytes(bytes(usage.total * bytesPerBlock))}
        </span>
      </div>
      <div className="usage-bar" aria-hidden="true">
        {parts.map(({ key }) =>
          usage[key] > 0 ? (
            <span key={key} className={`usage-part usage-${key}`} style={{ flexGrow: usage[key] / usage.total }} />
          ) : null,
        )}
      </div>
      <ul className="usage-legend">
        {parts.map(({ key, label, title }) => (
          <li key={key} title={title}>
            <i className={`swatch usage-${key}`} aria-hidden="true" />
            {label} <b>{formatCount(usage[key])}</b>
            <span className="muted">{formatShare(usage[key] / usage.total)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
