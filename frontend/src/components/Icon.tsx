import type { ReactNode } from "react";

/** Shapes drawn on a 16 px grid; each state has its own outline, so that no meaning rests on colour. */
const shapes = {
  ready: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="m5.2 8.2 2 2 3.6-4.2" />
    </>
  ),
  stalled: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M6.4 5.6v4.8M9.6 5.6v4.8" />
    </>
  ),
  down: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="m5.8 5.8 4.4 4.4m0-4.4-4.4 4.4" />
    </>
  ),
  silent: (
    <>
      <circle cx="8" cy="8" r="6" strokeDasharray="2.4 2.2" />
      <path d="M6.4 6.6a1.7 1.7 0 1 1 2.2 1.7c-.4.1-.6.4-.6.8M8 11v.1" />
    </>
  ),
  pending: (
    <>
      <circle cx="8" cy="8" r="6" />
      <path d="M8 4.8V8l2.2 1.4" />
    </>
  ),
  draining: <path d="M4 2.5h8M4 13.5h8M5 2.5c0 3 6 8 6 11M11 2.5c0 3-6 8-6 11" />,
  held: <path d="M4.5 7V5a3.5 3.5 0 0 1 7 0v2M3.5 7h9v6.5h-9z" />,
  pinned: <path d="M6 2.5h4l-.6 4 2.1 2.3H4.5l2.1-2.3zM8 8.8v4.7" />,
  ended: <path d="M4.5 7V5a3.5 3.5 0 0 1 6.8-1.1M3.5 7h9v6.5h-9z" />,
  warning: <path d="M8 2.2 14.2 13H1.8zM8 6.4v3.2M8 11.3v.1" />,
  forward: <path d="M2 8h11m-3.6-3.6L13 8l-3.6 3.6" />,
  back: <path d="M14 8H3m3.6-3.6L3 8l3.6 3.6" />,
  chevron: <path d="m6 4 4 4-4 4" />,
  external: <path d="M6.5 3.5h-3v9h9v-3M9 3h4v4M13 3 7.6 8.4" />,
  retry: <path d="M13 8a5 5 0 1 1-1.5-3.6M13 2.5v3h-3" />,
  live: (
    <>
      <circle cx="8" cy="8" r="2" fill="currentColor" stroke="none" />
      <path d="M4.8 11.2a4.5 4.5 0 0 1 0-6.4M11.2 4.8a4.5 4.5 0 0 1 0 6.4" />
    </>
  ),
} satisfies Record<string, ReactNode>;

export type IconName = keyof typeof shapes;

/** Decorative: the word beside it says the same. */
export function Icon({ name, className }: { readonly name: IconName; readonly className?: string }) {
  return (
    <svg
      className={className ? `icon ${className}` : "icon"}
      viewBox="0 0 16 16"
      width="16"
      height="16"
      fill="none"
      stroke="currentColor"
      strokeWidth="1.5"
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      {shapes[name]}
    </svg>
  );
}
