import { plural } from "../model/format";
import { formatPolicyValue } from "../model/policy";
import type { FieldDiff, Revision } from "../types/domain";
import { Age } from "./Age";

export function RevisionList({ revisions }: { readonly revisions: readonly Revision[] }) {
  if (revisions.length === 0)
    return <p className="muted">Nothing has been published: the fleet runs on the defaults.</p>;
  return (
    <ol className="revisions" reversed>
      {revisions.map((revision) => (
        <li key={revision.revision}>
          <div className="revision-head">
            <b>{revision.revision}</b> <span className="scope">{revision.scope}</span>
            <span className="muted">
              {revision.author}, <Age at={revision.publishedAt} /> ago
            </span>
          </div>
          <RevisionDiff revision={revision} />
          {revision.reason ? <p className="revision-reason">{revision.reason}</p> : null}
        </li>
      ))}
    </ol>
  );
}

const MANY_FIELDS = 4;

/** A revision that sets everything, as the first one does, would push all others out of sight. */
function RevisionDiff({ revision }: { readonly revision: Revision }) {
  const list = <DiffList diff={revision.diff} scope={revision.scope} />;
  if (revision.diff.length <= MANY_FIELDS) return list;
  return (
    <details>
      <summary>{plural(revision.diff.length, "field")} changed</summary>
      {list}
    </details>
  );
}

export function DiffList({ diff, scope }: { readonly diff: readonly FieldDiff[]; readonly scope: string }) {
  const unset = scope === "fleet" ? "default" : "inherited";
  return (
    <ul className="diff">
      {diff.map(({ field, before, after }) => (
        <li key={field}>
          <code>{field}</code> <del>{formatPolicyValue(field, before, unset)}</del> <span aria-label="becomes">→</span>{" "}
          <ins>{formatPolicyValue(field, after, unset)}</ins>
        </li>
      ))}
    </ul>
  );
}
