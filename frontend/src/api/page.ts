import type { PageContext } from "../types/page";

const meta = (name: string) => document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";

/** A login in another tab rotates the token; the cookie, where it is readable, is then newer than the page. */
export function currentCsrfToken(): string {
  const cookie = document.cookie.split("; ").find((part) => part.startsWith("csrftoken="));
  return cookie ? decodeURIComponent(cookie.slice("csrftoken=".length)) : meta("backhaul-csrf-token");
}

export function pageContext(): PageContext {
  return { user: meta("backhaul-user"), csrfToken: currentCsrfToken() };
}

export function dashboardUrl(location: Location): string {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return `${scheme}//${location.host}/ws/dashboard/`;
}
