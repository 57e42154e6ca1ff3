import { useId, useState } from "react";

import { formatCount, plural } from "../model/format";
import { formatPolicyValue, policyFields } from "../model/policy";
import { useDashboard } from "../queries/dashboard";
import type { Policy } from "../types/domain";
import { AckList } from "./AckList";
import { Panel, Skeleton } from "./Panel";
import { PublishForm } from "./PublishForm";
import { RevisionList } from "./RevisionList";

/** What the fleet runs with, the form that changes it, and the proof that the change arrived. */
export function PolicyPanel() {
  const policy = useDashboard((state) => state.policy);
  return (
    <Panel id="policy" title="Policy" note={policy ? `revision ${policy.revision}` : null}>
      {policy ? <PolicyBody policy={policy} /> : <Skeleton rows={6} />}
    </Panel>
  );
}

function PolicyBody({ policy }: { readonly policy: Policy }) {
  return (
    <div className="policy">
      <div className="policy-part">
        <h3>Effective for the fleet</h3>
        <EffectiveValues policy={policy} />
      </div>
      <div className="policy-part" id="policy-acks">
        <h3>
          {policy.revision > 0 ? `Acknowledged: revision ${policy.revision}` : "Acknowledged"}{" "}
          {policy.num_enforcers > 0 ? (
            <span className="muted">
              {formatCount(policy.num_answered)} of {formatCount(policy.num_enforcers)} answered
            </span>
          ) : null}
        </h3>
        <AckList acks={policy.acks} />
        {policy.num_enforcers > policy.acks.length ? (
          <p className="muted">
            {plural(policy.num_enforcers - policy.acks.length, "enforcer")} more, all answered earlier than these.{" "}
            <a href={`/api/v1/policies/${policy.revision}`}>All as JSON</a>
          </p>
        ) : null}
      </div>
      <div className="policy-part">
        <PublishForm policy={policy} />
      </div>
      <div className="policy-part">
        <h3>Revisions</h3>
        <RevisionList revisions={policy.revisions} />
      </div>
    </div>
  );
}

function EffectiveValues({ policy }: { readonly policy: Policy }) {
  const narrower = Object.entries(policy.scopes).filter(([scope]) => scope !== "fleet");
  return (
    <table className="effective">
      <caption className="sr-only">Effective policy values of the fleet scope</caption>
      <thead className="sr-only">
        <tr>
          <th scope="col">Field</th>
          <th scope="col">Value</th>
          <th scope="col">Acts at</th>
        </tr>
      </thead>
      <tbody>
        {policyFields.map((field) => (
          <tr key={field.name}>
            <th scope="row">
              <FieldName name={field.name} help={field.help} />
            </th>
            <td className="num value" data-field={field.name}>
              {formatPolicyValue(field.name, policy.values[field.name])}
            </td>
            <td className="muted acts">{field.actsAt}</td>
          </tr>
        ))}
      </tbody>
      {narrower.length > 0 ? (
        <tfoot>
          {narrower.map(([scope, patch]) => (
            <tr key={scope}>
              <td colSpan={3}>
                <span className="scope">{scope}</span>{" "}
                {Object.entries(patch)
                  .map(([name, value]) => `${name} ${formatPolicyValue(name, value)}`)
                  .join(", ")}
              </td>
            </tr>
          ))}
        </tfoot>
      ) : null}
    </table>
  );
}

/** The field's contract name, with its help one key press or click away. */
export function FieldName({ name, help }: { readonly name: string; readonly help: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const id = useId();
  return (
    <>
      <button
        type="button"
        className="field-name mono"
        aria-expanded={isOpen}
        aria-controls={id}
        title={help}
        onClick={() => setIsOpen(!isOpen)}
      >
        {name}
      </button>
      <span id={id} className="field-help" hidden={!isOpen}>
        {help}
      </span>
    </>
  );
}
