import { useId } from "react";

import { formatPolicyValue, INHERIT, type PolicyField } from "../model/policy";
import type { PolicyValue } from "../types/domain";

interface PolicyFieldInputProps {
  readonly field: PolicyField;
  readonly inherited: PolicyValue | undefined;
  /** Whether the scope sets the field itself, so that there is something to give back. */
  readonly canInherit: boolean;
  readonly value: string;
  readonly problem: string | undefined;
  readonly onChange: (value: string) => void;
}

/** One field; left empty it stays as it is, which the placeholder shows. */
export function PolicyFieldInput({ field, inherited, canInherit, value, problem, onChange }: PolicyFieldInputProps) {
  const id = useId();
  const shared = {
    id,
    name: field.name,
    value,
    "aria-invalid": problem !== undefined,
    "aria-describedby": `${id}-help ${id}-problem`,
  };
  return (
    <div className={value === "" ? "field" : "field field-set"}>
      <label htmlFor={id} className="mono" title={field.help}>
        {field.name}
      </label>
      <div className={field.kind === "switch" ? "field-control field-control-switch" : "field-control"}>
        {field.kind === "switch" ? (
          <select {...shared} onChange={(event) => onChange(event.target.value)}>
            <option value="">leave {formatPolicyValue(field.name, inherited)}</option>
            <option value="on">on</option>
            <option value="off">off</option>
            {canInherit ? <option value={INHERIT}>inherit</option> : null}
          </select>
        ) : (
          <input
            {...shared}
            type="text"
            inputMode={field.kind === "integer" ? "numeric" : "decimal"}
            placeholder={inherited === undefined ? "" : String(inherited)}
            autoComplete="off"
            onChange={(event) => onChange(event.target.value)}
          />
        )}
        {canInherit && field.kind !== "switch" ? (
          <button
            type="button"
            className="link"
            title={`Give ${field.name} back to the wider scope`}
            onClick={() => onChange(INHERIT)}
          >
            inherit
          </button>
        ) : (
          <span className="unit">{field.kind === "share" ? "0 to 1" : field.unit}</span>
        )}
      </div>
      <p id={`${id}-help`} className="sr-only">
        {field.help} Allowed: {field.limits}.
      </p>
      <p id={`${id}-problem`} className="problem">
        {problem}
      </p>
    </div>
  );
}
