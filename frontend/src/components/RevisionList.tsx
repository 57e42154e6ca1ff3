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
          <DiffList diff={revision.diff} />
          {revision.reason ? <p className="revision-reason">{revision.reason}</p> : null}
        </li>
      ))}
    </ol>
  );
}

export function DiffList({ diff }: { readonly diff: readonly FieldDiff[] }) {
  return (
    <ul className="diff">
      {diff.map(({ field, before, after }) => (
        <li key={field}>
          <code>{field}</code> <del>{formatPolicyValue(field, before)}</del> <span aria-label="becomes">→</span>{" "}
          <ins>{formatPolicyValue(field, after)}</ins>
        </li>
      ))}
    </ul>
  );
}
