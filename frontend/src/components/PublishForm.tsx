import { useId, useRef, useState, type FormEvent } from "react";

import { checkDraft, diffPatch, emptyDraft, ownPatch, policyFields, scopePatch, type Draft } from "../model/policy";
import { usePublish } from "../queries/publish";
import type { Policy } from "../types/domain";
import { PolicyFieldInput } from "./PolicyFieldInput";
import { PublishResult } from "./PublishResult";
import { DiffList } from "./RevisionList";
import { ScopeInputs } from "./ScopeInputs";

/** Edit, review the difference, publish: two presses and a reason between a thought and the whole fleet. */
export function PublishForm({ policy }: { readonly policy: Policy }) {
  const [draft, setDraft] = useState<Draft>(emptyDraft);
  const [isReviewing, setIsReviewing] = useState(false);
  const [showProblems, setShowProblems] = useState(false);
  const { state, publish, clear } = usePublish();
  const form = useRef<HTMLFormElement>(null);
  const reasonId = useId();

  const checked = checkDraft(draft);
  const rejected = state.phase === "failed" ? state.problem.fields : {};
  const problemOf = (key: string) => (showProblems ? checked.problems[key] : undefined) ?? rejected[key];
  const current = scopePatch(policy, checked.scope);
  const own = ownPatch(policy, checked.scope);
  const diff = diffPatch(current, checked.values);

  const edit = (change: Partial<Draft>) => {
    setDraft({ ...draft, ...change });
    setIsReviewing(false);
    if (state.phase !== "idle") clear();
  };

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (Object.keys(checked.problems).length > 0) {
      setShowProblems(true);
      focusFirstProblem(form.current, checked.problems);
      return;
    }
    if (!isReviewing) {
      setIsReviewing(true);
      return;
    }
    const { scope, values } = checked;
    const isPublished = await publish({ scope, values, reason: draft.reason.trim() });
    setIsReviewing(false);
    if (isPublished) {
      setDraft(emptyDraft);
      setShowProblems(false);
    }
  };

  return (
    <form className="publish" ref={form} onSubmit={submit} noValidate aria-label="Publish a policy revision">
      <h3>Publish a change</h3>
      <ScopeInputs draft={draft} onChange={edit} problem={problemOf("scope")} />
      <div className="publish-fields">
        {policyFields.map((field) => (
          <PolicyFieldInput
            key={field.name}
            field={field}
            inherited={current[field.name] ?? policy.values[field.name]}
            canInherit={own[field.name] !== undefined && checked.scope !== "fleet"}
            value={draft.inputs[field.name] ?? ""}
            problem={problemOf(field.name)}
            onChange={(value) => edit({ inputs: { ...draft.inputs, [field.name]: value } })}
          />
        ))}
      </div>
      <div className="field field-wide">
        <label htmlFor={reasonId}>Reason</label>
        <input
          id={reasonId}
          name="reason"
          type="text"
          value={draft.reason}
          placeholder="Kept with the revision"
          autoComplete="off"
          aria-invalid={problemOf("reason") !== undefined}
          aria-describedby={`${reasonId}-problem`}
          onChange={(event) => edit({ reason: event.target.value })}
        />
        <p id={`${reasonId}-problem`} className="problem">
          {problemOf("reason")}
        </p>
      </div>
      {problemOf("form") ? <p className="problem">{problemOf("form")}</p> : null}
      {isReviewing ? (
        <div className="review">
          <p>
            Scope <span className="scope">{checked.scope}</span> would change:
          </p>
          {diff.length > 0 ? (
            <DiffList diff={diff} scope={checked.scope} />
          ) : (
            <p>Nothing: these values already hold.</p>
          )}
        </div>
      ) : null}
      <div className="publish-actions">
        <button
          type="submit"
          className="button button-primary"
          disabled={state.phase === "sending" || (isReviewing && diff.length === 0)}
        >
          {state.phase === "sending" ? "Publishing…" : isReviewing ? `Publish to ${checked.scope}` : "Review change"}
        </button>
        {isReviewing ? (
          <button type="button" className="button" onClick={() => setIsReviewing(false)}>
            Back
          </button>
        ) : null}
      </div>
      <PublishResult state={state} />
    </form>
  );
}

function focusFirstProblem(form: HTMLFormElement | null, problems: Readonly<Record<string, string>>): void {
  const first = [...(form?.elements ?? [])].find((element) => (element.getAttribute("name") ?? "") in problems);
  if (first instanceof HTMLElement) first.focus();
}
