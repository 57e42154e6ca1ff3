import { useId } from "react";

import { scopeKinds, type Draft, type ScopeKind } from "../model/policy";
import { useDashboard } from "../queries/dashboard";

interface ScopeInputsProps {
  readonly draft: Draft;
  readonly onChange: (change: Partial<Draft>) => void;
  readonly problem: string | undefined;
}

/** Whom the change is for. Names that the page knows are offered; tenants and sessions may be any. */
export function ScopeInputs({ draft, onChange, problem }: ScopeInputsProps) {
  const id = useId();
  const names = useKnownNames(draft.scopeKind);
  return (
    <div className="field field-wide">
      <label htmlFor={`${id}-kind`}>Scope</label>
      <div className="scope-inputs">
        <select
          id={`${id}-kind`}
          value={draft.scopeKind}
          onChange={(event) => onChange({ scopeKind: event.target.value as ScopeKind, scopeName: "" })}
        >
          {scopeKinds.map((kind) => (
            <option key={kind} value={kind}>
              {kind}
            </option>
          ))}
        </select>
        {draft.scopeKind === "fleet" ? null : (
          <>
            <input
              type="text"
              name="scope"
              list={`${id}-names`}
              value={draft.scopeName}
              aria-label={`Name of the ${draft.scopeKind}`}
              placeholder={names[0] ?? `name of the ${draft.scopeKind}`}
              autoComplete="off"
              spellCheck={false}
              aria-invalid={problem !== undefined}
              aria-describedby={`${id}-problem`}
              onChange={(event) => onChange({ scopeName: event.target.value })}
            />
            <datalist id={`${id}-names`}>
              {names.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </datalist>
          </>
        )}
      </div>
      <p id={`${id}-problem`} className="problem">
        {problem}
      </p>
    </div>
  );
}

function useKnownNames(kind: ScopeKind): readonly string[] {
  const engines = useDashboard((state) => state.engines);
  const sessions = useDashboard((state) => state.sessions);
  switch (kind) {
    case "fleet":
      return [];
    case "role":
      return ["prefill", "decode"];
    case "engine":
      return engines.map((engine) => engine.name);
    case "model":
      return distinct(engines.map((engine) => engine.model));
    case "tenant":
      return distinct(sessions.map((session) => session.tenant));
    case "session":
      return sessions.map((session) => session.id);
  }
}

const distinct = (names: readonly string[]) => [...new Set(names)].filter((name) => name !== "").toSorted();
