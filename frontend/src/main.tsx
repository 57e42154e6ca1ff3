import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { DashboardPage } from "./pages/DashboardPage";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/badges.css";
import "./styles/controls.css";
import "./styles/tables.css";
import "./styles/frame.css";
import "./styles/fleet.css";
import "./styles/transfers.css";
import "./styles/sessions.css";
import "./styles/policy.css";

const root = document.getElementById("root");
if (!root) throw new Error("index.html lost its root element");
createRoot(root).render(
  <StrictMode>
    <DashboardPage />
  </StrictMode>,
);
