/** The few REST calls of the page. Errors come back as values in the API's problem+json shape (RFC 9457). */
import * as v from "valibot";

import type { PolicyChange } from "../types/domain";
import { currentCsrfToken } from "./page";

const TIMEOUT_MS = 15_000;

export interface Problem {
  readonly title: string;
  readonly detail: string;
  /** Per-field messages, keyed by field name; `values.` is already stripped. */
  readonly fields: Readonly<Record<string, string>>;
}

export type Answer<Body> =
  { readonly ok: true; readonly body: Body } | { readonly ok: false; readonly problem: Problem };

const publishedSchema = v.object({ number: v.pipe(v.number(), v.integer()) });

export interface Publication {
  readonly scope: string;
  readonly values: PolicyChange;
  readonly reason: string;
}

export function publishPolicy(publication: Publication): Promise<Answer<{ number: number }>> {
  return call("/api/v1/policies", publishedSchema, { method: "POST", body: JSON.stringify(publication) });
}

const approvedSchema = v.object({ name: v.string() });

export function approveEngine(name: string): Promise<Answer<{ name: string }>> {
  return call(`/api/v1/engines/${encodeURIComponent(name)}/approve`, approvedSchema, { method: "POST", body: "{}" });
}

async function call<Schema extends v.GenericSchema>(
  path: string,
  schema: Schema,
  init: RequestInit,
): Promise<Answer<v.InferOutput<Schema>>> {
  let response: Response;
  let body: unknown;
  try {
    response = await fetch(path, {
      ...init,
      credentials: "same-origin",
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
      headers: {
        Accept: "application/json",
        "Content-Type": "application/json",
        "X-CSRFToken": currentCsrfToken(),
      },
    });
    body = await readJson(response);
  } catch (error) {
    const isTimeout = error instanceof DOMException && error.name === "TimeoutError";
    const detail = isTimeout
      ? `No answer within ${TIMEOUT_MS / 1000} s. The change may still have been stored: check the revisions before trying again.`
      : "The control plane can't be reached. Nothing is known to have been stored.";
    return { ok: false, problem: { title: isTimeout ? "Timed out" : "Unreachable", detail, fields: {} } };
  }
  if (!response.ok) return { ok: false, problem: problemFrom(response.status, body) };
  const parsed = v.safeParse(schema, body);
  if (parsed.success) return { ok: true, body: parsed.output };
  return { ok: false, problem: { title: "Unexpected answer", detail: parsed.issues[0].message, fields: {} } };
}

async function readJson(response: Response): Promise<unknown> {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const problemSchema = v.object({
  title: v.optional(v.string(), ""),
  detail: v.optional(v.string(), ""),
  errors: v.optional(v.array(v.object({ field: v.string(), message: v.string() })), []),
});

export function problemFrom(status: number, body: unknown): Problem {
  const parsed = v.safeParse(problemSchema, body);
  if (!parsed.success) return { title: `HTTP ${status}`, detail: "The answer was not in the API's shape.", fields: {} };
  const { title, detail, errors } = parsed.output;
  return { title: title || `HTTP ${status}`, detail, fields: fieldsFrom(errors) };
}

function fieldsFrom(errors: readonly { readonly field: string; readonly message: string }[]): Record<string, string> {
  return Object.fromEntries(errors.map(({ field, message }) => [field.replace(/^values\./, ""), message]));
}
