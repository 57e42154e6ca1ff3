import { formatAge, formatCount, plural } from "../model/format";
import { useSecond } from "../queries/clock";
import { useDashboard, useKnownUntil } from "../queries/dashboard";
import type { Router } from "../types/domain";
import { since } from "../types/units";
import { Badge } from "./Badge";
import { EngineCard } from "./EngineCard";
import { EmptyState, Panel, Skeleton } from "./Panel";

const roleOrder = { prefill: 0, decode: 1, "": 2 } as const;

export function FleetStrip() {
  const isLoaded = useDashboard((state) => state.isLoaded);
  const engines = useDashboard((state) => state.engines);
  const agents = useDashboard((state) => state.agents);
  const routers = useDashboard((state) => state.routers);
  const isTruncated = useDashboard((state) => state.truncated.includes("engines"));
  const agentOf = new Map(agents.map((agent) => [agent.engine, agent]));
  const inOrder = engines.toSorted((a, b) => roleOrder[a.role] - roleOrder[b.role]);
  return (
    <Panel id="fleet" title="Fleet" note={isLoaded ? <Routers routers={routers} /> : null}>
      {!isLoaded ? <Skeleton rows={2} /> : null}
      {isLoaded && engines.length === 0 ? <EmptyFleet hasRouter={routers.length > 0} /> : null}
      {engines.length > 0 ? (
        <ul className={engines.length > 8 ? "engines engines-dense" : "engines"}>
          {inOrder.map((engine) => (
            <EngineCard key={engine.name} engine={engine} agent={agentOf.get(engine.name)} />
          ))}
        </ul>
      ) : null}
      {isTruncated ? (
        <p className="footnote">
          Showing the first {formatCount(engines.length)} engines. <a href="/api/v1/engines">All engines as JSON</a>
        </p>
      ) : null}
    </Panel>
  );
}

function Routers({ routers }: { readonly routers: readonly Router[] }) {
  const now = useKnownUntil(useSecond());
  if (routers.length === 0) return <span>No router has connected yet.</span>;
  return (
    <ul className="routers" aria-label="Routers">
      {routers.map((router) => {
        const seen = router.seenAt === null ? "never seen" : `seen ${formatAge(since(router.seenAt, now))} ago`;
        return (
          <li key={router.name} title={seen}>
            <span className="role role-router">R</span>
            <b>{router.name}</b>
            {router.connected ? (
              <Badge tone="good" icon="ready" label="connected" />
            ) : (
              <Badge tone="bad" icon="down" label={`not connected, ${seen}`} />
            )}
            <span className="muted">
              {plural(router.num_active_turns, "active turn")} · knows {plural(router.num_leases, "lease")}
              {router.num_dropped_events > 0 ? ` · ${plural(router.num_dropped_events, "event")} dropped` : ""}
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function EmptyFleet({ hasRouter }: { readonly hasRouter: boolean }) {
  return (
    <EmptyState title="No engine has joined yet">
      <ol className="steps">
        <li>
          Start a prefill and a decode engine with Backhaul's connector in <code>--kv-transfer-config</code>.
        </li>
        <li>
          Beside each one start its agent:{" "}
          <code>python -m connector.agent --engine-name prefill-0 --engine-url http://127.0.0.1:8100</code>
        </li>
        {hasRouter ? null : (
          <li>
            Start a router, which sends the traffic: <code>python -m connector.router --router-name router-0</code>
          </li>
        )}
      </ol>
      <p className="muted">
        On one machine, <code>make up</code> does all of it. An engine appears here as soon as its agent has connected;
        the README's section on joining a running fleet has the whole commands.
      </p>
    </EmptyState>
  );
}
