import { shortId } from "../model/format";
import { Icon } from "./Icon";

export function TraceLink({ traceId }: { readonly traceId: string }) {
  if (!traceId)
    return (
      <span className="muted" title="This turn's trace was not sampled.">
        –
      </span>
    );
  return (
    <a
      className="mono trace"
      href={`/traces/${encodeURIComponent(traceId)}`}
      target="_blank"
      rel="noreferrer"
      title={`Trace ${traceId}, opens in a new tab`}
    >
      {shortId(traceId, 6)}
      <Icon name="external" />
      <span className="sr-only">(opens in a new tab)</span>
    </a>
  );
}
