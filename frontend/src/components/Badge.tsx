import type { Engine, EngineState, LeaseState, Outcome } from "../types/domain";
import { decisionText, type DecisionTone } from "../model/decisions";
import { drainText } from "../model/engines";
import { Icon, type IconName } from "./Icon";

export type Tone = "good" | "warn" | "bad" | "info" | "quiet";

interface BadgeProps {
  readonly tone: Tone;
  readonly icon?: IconName;
  readonly label: string;
  readonly title?: string | undefined;
}

export function Badge({ tone, icon, label, title }: BadgeProps) {
  return (
    <span className={`badge badge-${tone}`} title={title}>
      {icon ? <Icon name={icon} /> : null}
      {label}
    </span>
  );
}

const engineBadges: Readonly<Record<EngineState, BadgeProps>> = {
  ready: { tone: "good", icon: "ready", label: "ready" },
  stalled: { tone: "bad", icon: "stalled", label: "stalled", title: "The process lives but doesn't answer its agent." },
  down: { tone: "bad", icon: "down", label: "down", title: "The engine's link is gone." },
  silent: { tone: "warn", icon: "silent", label: "silent", title: "Its agent hasn't been heard from." },
  pending: { tone: "info", icon: "pending", label: "awaits approval" },
};

export function EngineBadge({ engine }: { readonly engine: Engine }) {
  return (
    <>
      <Badge {...engineBadges[engine.state]} />
      {engine.draining ? <Badge tone="info" icon="draining" {...drainText(engine)} /> : null}
    </>
  );
}

const outcomeBadges: Readonly<Record<Outcome, BadgeProps>> = {
  completed: { tone: "quiet", icon: "ready", label: "completed" },
  failed: { tone: "bad", icon: "down", label: "failed" },
  timeout: { tone: "bad", icon: "pending", label: "timeout", title: "Passed kv_pull_deadline; recomputed instead." },
  fenced: { tone: "warn", icon: "warning", label: "fenced", title: "The lease ended while it was read; recomputed." },
};

export const OutcomeBadge = ({ outcome }: { readonly outcome: Outcome }) => <Badge {...outcomeBadges[outcome]} />;

const endedTitles: Readonly<Record<Exclude<LeaseState, "held" | "unknown">, string>> = {
  superseded: "A later turn's lease replaced it.",
  released: "Its blocks were given back.",
  expired: "Its time ran out.",
  lost: "The engine that held it is gone.",
};

export function EndedBadge({ state, reason }: { readonly state: keyof typeof endedTitles; readonly reason: string }) {
  const title = reason ? `${endedTitles[state]} Reason: ${reason}.` : endedTitles[state];
  return (
    <Badge
      tone={state === "lost" ? "bad" : "quiet"}
      icon={state === "lost" ? "down" : "ended"}
      label={state}
      title={title}
    />
  );
}

const decisionTones: Readonly<Record<DecisionTone, Tone>> = {
  reused: "good",
  partial: "good",
  local: "info",
  recomputed: "quiet",
  trouble: "warn",
  none: "quiet",
};

const decisionIcons: Readonly<Partial<Record<DecisionTone, IconName>>> = {
  reused: "ready",
  partial: "ready",
  trouble: "warning",
};

export function DecisionBadge({ code }: { readonly code: string }) {
  const { label, tone, help } = decisionText(code);
  if (tone === "none")
    return (
      <span className="muted" title={help}>
        –
      </span>
    );
  const icon = decisionIcons[tone];
  return <Badge tone={decisionTones[tone]} {...(icon ? { icon } : {})} label={label} title={`${code}: ${help}`} />;
}
