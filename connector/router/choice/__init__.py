"""Which engines serve a turn: what each would cost, the choice among them, and what past turns taught."""
