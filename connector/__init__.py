"""The data-plane half of Backhaul: engine connector, agent, router and their wire contract."""
