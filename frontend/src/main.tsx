import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { DashboardPage } from "./pages/DashboardPage";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/page.css";

const root = document.getElementById("root");
if (!root) throw new Error("index.html lost its root element");
createRoot(root).render(
  <StrictMode>
    <DashboardPage />
  </StrictMode>,
);
