import { formatAge, formatServerTime } from "../model/format";
import { useSecond } from "../queries/clock";
import { useDashboard } from "../queries/dashboard";
import { since, type Instant } from "../types/units";

/** How long ago, with the exact time by the server's clock on hover. */
export function Age({ at }: { readonly at: Instant }) {
  const now = useSecond();
  const serverNow = useDashboard((state) => state.serverNow);
  const exact = serverNow ? formatServerTime(serverNow.iso, at - serverNow.at) : undefined;
  return <span title={exact}>{formatAge(since(at, now))}</span>;
}
