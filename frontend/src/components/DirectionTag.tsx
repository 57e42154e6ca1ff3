import type { Direction } from "../types/domain";
import { Icon } from "./Icon";

const words = {
  "P->D": { letters: ["P", "D"], icon: "forward", long: "prefill to decode" },
  "D->P": { letters: ["D", "P"], icon: "forward", long: "decode to prefill, the return path" },
} as const;

/** The direction as letters and arrow; colour only repeats it. */
export function DirectionTag({ direction, isLong }: { readonly direction: Direction; readonly isLong?: boolean }) {
  const { letters, icon, long } = words[direction];
  return (
    <span className={`direction direction-${direction === "P->D" ? "forward" : "return"}`} title={long}>
      <span aria-hidden="true">
        {letters[0]}
        <Icon name={icon} />
        {letters[1]}
      </span>
      <span className={isLong ? "direction-words" : "sr-only"}>{long}</span>
    </span>
  );
}
