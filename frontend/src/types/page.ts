/** What the control plane writes into the page's head for the user who is logged in. */
export interface PageContext {
  readonly user: string;
  readonly csrfToken: string;
}
