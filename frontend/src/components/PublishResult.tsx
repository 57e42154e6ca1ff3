import { policyField } from "../model/policy";
import type { PublishState } from "../queries/publish";
import { Icon } from "./Icon";

const isShownAtItsInput = (field: string) =>
  policyField(field) !== undefined || field === "scope" || field === "reason";

/** What became of the last publication, read out when it changes. */
export function PublishResult({ state }: { readonly state: PublishState }) {
  return (
    <div className="publish-result" role="status" aria-live="polite">
      {state.phase === "done" ? (
        <p className="result result-good">
          <Icon name="ready" />
          <span>
            Revision {state.revision} is published. <a href="#policy-acks">Its acknowledgements</a> arrive above.
          </span>
        </p>
      ) : null}
      {state.phase === "failed" ? (
        <div className="result result-bad">
          <Icon name="down" />
          <div>
            <strong>Not published. {state.problem.title}.</strong> {state.problem.detail}
            <ul>
              {Object.entries(state.problem.fields)
                .filter(([field]) => !isShownAtItsInput(field))
                .map(([field, message]) => (
                  <li key={field}>
                    {field ? `${field}: ` : ""}
                    {message}
                  </li>
                ))}
            </ul>
          </div>
        </div>
      ) : null}
    </div>
  );
}
