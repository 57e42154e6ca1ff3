"""``make demo``: one agentic conversation with reuse, one without, on the running stack, side by side."""
