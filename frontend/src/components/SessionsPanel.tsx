import { useState } from "react";

import { plural } from "../model/format";
import { useDashboard } from "../queries/dashboard";
import type { Session } from "../types/domain";
import { EmptyState, Panel, Skeleton } from "./Panel";
import { SegmentedControl } from "./SegmentedControl";
import { SessionRows } from "./SessionRows";

const filters = [
  { value: "all", label: "All" },
  { value: "held", label: "Held" },
  { value: "ended", label: "Ended" },
] as const;

type Filter = (typeof filters)[number]["value"];

function passes(session: Session, filter: Filter): boolean {
  if (filter === "all") return true;
  return (session.placement?.state === "held") === (filter === "held");
}

interface SessionsPanelProps {
  readonly openSessions: ReadonlySet<string>;
  readonly onToggle: (session: string) => void;
}

export function SessionsPanel({ openSessions, onToggle }: SessionsPanelProps) {
  const isLoaded = useDashboard((state) => state.isLoaded);
  const sessions = useDashboard((state) => state.sessions);
  const isTruncated = useDashboard((state) => state.truncated.includes("sessions"));
  const [filter, setFilter] = useState<Filter>("all");
  const shown = sessions.filter((session) => passes(session, filter));
  const note = isTruncated ? `the ${sessions.length} most recent` : plural(sessions.length, "session");
  return (
    <Panel
      id="sessions"
      title="Sessions"
      note={sessions.length > 0 ? note : null}
      tools={
        sessions.length > 0 ? (
          <SegmentedControl label="Show sessions" options={filters} value={filter} onChange={setFilter} />
        ) : null
      }
    >
      {!isLoaded ? <Skeleton rows={4} /> : null}
      {isLoaded && sessions.length === 0 ? <NoSessions /> : null}
      {sessions.length > 0 ? (
        <div className="table-scroll table-tall" tabIndex={0} role="region" aria-label="Sessions, last active first">
          <table>
            <caption className="sr-only">Sessions and the leases that hold their KV</caption>
            <thead>
              <tr>
                <th scope="col">Session</th>
                <th scope="col">Held by</th>
                <th scope="col">Lease</th>
                <th scope="col">Expires in</th>
                <th scope="col" className="num">
                  Tokens
                </th>
                <th scope="col" className="num">
                  Blocks
                </th>
                <th scope="col" className="num">
                  Size
                </th>
                <th scope="col" className="num">
                  Turns
                </th>
                <th scope="col">Last turn: prefill</th>
                <th scope="col">decode</th>
                <th scope="col" className="num">
                  Reused
                </th>
                <th scope="col" className="num">
                  TTFT
                </th>
                <th scope="col">Active</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((session) => (
                <SessionRows
                  key={session.id}
                  session={session}
                  isOpen={openSessions.has(session.id)}
                  onToggle={onToggle}
                />
              ))}
              {shown.length === 0 ? (
                <tr>
                  <td colSpan={13} className="muted">
                    No such session among those shown.
                  </td>
                </tr>
              ) : null}
            </tbody>
          </table>
        </div>
      ) : null}
      {isTruncated ? (
        <p className="footnote">
          Older sessions are not listed here. <a href="/api/v1/sessions">All sessions as JSON</a>
        </p>
      ) : null}
    </Panel>
  );
}

function NoSessions() {
  return (
    <EmptyState title="No session yet">
      <p>A conversation appears here with its first turn through the router:</p>
      <pre className="code" tabIndex={0}>
        {'curl http://127.0.0.1:8080/v1/chat/completions -H "Authorization: Bearer $(cat .run/api-key)" \\\n' +
          '  -H "Content-Type: application/json" -H "X-Session-ID: demo" \\\n' +
          '  -d \'{"model": "…", "messages": [{"role": "user", "content": "Hello"}]}\''}
      </pre>
      <p className="muted">When its reply ends, the decode engine keeps the KV under a lease, counted down here.</p>
    </EmptyState>
  );
}
