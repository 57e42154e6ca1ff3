import { pageContext } from "../api/page";
import { STALE_AFTER_MS } from "../api/socket";
import { formatAge, formatCount, formatShare, plural } from "../model/format";
import { recentReuse } from "../model/reuse";
import { useSecond } from "../queries/clock";
import { useDashboard } from "../queries/dashboard";
import { since, until } from "../types/units";
import { Badge } from "./Badge";
import { Icon } from "./Icon";

export function TopBar() {
  const { user, csrfToken } = pageContext();
  return (
    <header className="topbar">
      <div className="brand">
        <svg viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
          <path
            d="M6 12h17l-4.5-4.5M26 20H9l4.5 4.5"
            fill="none"
            stroke="currentColor"
            strokeWidth="2.8"
            strokeLinecap="round"
            strokeLinejoin="round"
          />
        </svg>
        <h1>Backhaul</h1>
      </div>
      <FleetSummary />
      <div className="topbar-end">
        <ConnectionState />
        <form method="post" action="/logout/" className="logout">
          <input type="hidden" name="csrfmiddlewaretoken" value={csrfToken} />
          {user ? <span className="muted">{user}</span> : null}
          <button type="submit" className="button button-quiet">
            Log out
          </button>
        </form>
      </div>
    </header>
  );
}

function FleetSummary() {
  const isLoaded = useDashboard((state) => state.isLoaded);
  const engines = useDashboard((state) => state.engines);
  const sessions = useDashboard((state) => state.sessions);
  const turns = useDashboard((state) => state.turns);
  const revision = useDashboard((state) => state.policy?.revision);
  if (!isLoaded) return <dl className="summary" aria-hidden="true" />;
  const reuse = recentReuse(turns);
  const numReady = engines.filter((engine) => engine.state === "ready").length;
  const numHeld = sessions.filter((session) => session.placement?.state === "held").length;
  return (
    <dl className="summary">
      <div>
        <dt>engines ready</dt>
        <dd>
          {formatCount(numReady)}
          <span className="muted"> / {formatCount(engines.length)}</span>
        </dd>
      </div>
      <div>
        <dt>sessions held</dt>
        <dd>{formatCount(numHeld)}</dd>
      </div>
      {reuse ? (
        <div title={`Prompt tokens pulled back from decode engines, of the last ${plural(reuse.numTurns, "turn")}`}>
          <dt>prompt tokens reused</dt>
          <dd>{formatShare(reuse.share)}</dd>
        </div>
      ) : null}
      <div>
        <dt>policy revision</dt>
        <dd>{revision ?? "–"}</dd>
      </div>
    </dl>
  );
}

function ConnectionState() {
  const connection = useDashboard((state) => state.connection);
  const lastFrameAt = useDashboard((state) => state.lastFrameAt);
  const now = useSecond();
  const age = lastFrameAt === null ? null : since(lastFrameAt, now);
  switch (connection.phase) {
    case "connecting":
      return <Badge tone="info" icon="pending" label="connecting" />;
    case "reconnecting": {
      const wait = Math.ceil(until(connection.retryAt, now) / 1000);
      return <Badge tone="warn" icon="retry" label={wait > 0 ? `reconnecting in ${wait} s` : "reconnecting"} />;
    }
    case "signed_out":
      return <Badge tone="bad" icon="down" label="signed out" />;
    case "incompatible":
      return <Badge tone="bad" icon="down" label="stopped" />;
    case "live":
      if (age !== null && age > STALE_AFTER_MS)
        return <Badge tone="warn" icon="warning" label={`stale, ${formatAge(age)}`} />;
      return <Badge tone="good" icon="live" label="live" title="Updates arrive as they happen." />;
  }
}

/** Says what is wrong with the connection and what the page shows meanwhile; silent while all is well. */
export function ConnectionBanner({ onRetry }: { readonly onRetry: () => void }) {
  const connection = useDashboard((state) => state.connection);
  const isLoaded = useDashboard((state) => state.isLoaded);
  return (
    <div className="banner-slot" role="status" aria-live="polite">
      {connection.phase === "reconnecting" ? (
        <div className="banner banner-warn">
          <Icon name="warning" />
          <p>
            <strong>Disconnected from the control plane.</strong>{" "}
            {isLoaded ? <StaleSince /> : "Nothing could be loaded yet."} Engines and routers keep serving without it.
          </p>
          <button type="button" className="button" onClick={onRetry}>
            Try now
          </button>
        </div>
      ) : null}
      {connection.phase === "signed_out" ? (
        <div className="banner banner-bad">
          <Icon name="down" />
          <p>
            <strong>Your login has ended.</strong> What you see has stopped updating.
          </p>
          <a className="button" href="/login/?next=/">
            Log in again
          </a>
        </div>
      ) : null}
      {connection.phase === "incompatible" ? (
        <div className="banner banner-bad">
          <Icon name="down" />
          <p>
            <strong>The control plane speaks a newer version than this page.</strong> ({connection.problem})
          </p>
          <button type="button" className="button" onClick={() => window.location.reload()}>
            Reload the page
          </button>
        </div>
      ) : null}
    </div>
  );
}

function StaleSince() {
  const lastFrameAt = useDashboard((state) => state.lastFrameAt);
  const now = useSecond();
  if (lastFrameAt === null) return null;
  return <span aria-live="off">This is the state of {formatAge(since(lastFrameAt, now))} ago.</span>;
}
