import type { ReactNode } from "react";

interface PanelProps {
  readonly id: string;
  readonly title: string;
  readonly note?: ReactNode;
  readonly tools?: ReactNode;
  readonly children: ReactNode;
}

export function Panel({ id, title, note, tools, children }: PanelProps) {
  return (
    <section className="panel" id={id} aria-labelledby={`${id}-title`}>
      <header className="panel-head">
        <h2 id={`${id}-title`}>{title}</h2>
        {note ? <div className="panel-note">{note}</div> : null}
        {tools ? <div className="panel-tools">{tools}</div> : null}
      </header>
      {children}
    </section>
  );
}

export function EmptyState({ title, children }: { readonly title: string; readonly children: ReactNode }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** Grey bars in the shape of what is coming; hidden from screen readers, which hear the status line instead. */
export function Skeleton({ rows }: { readonly rows: number }) {
  return (
    <div className="skeleton" aria-hidden="true">
      {Array.from({ length: rows }, (_, row) => (
        <span key={row} className="skeleton-row" />
      ))}
    </div>
  );
}
