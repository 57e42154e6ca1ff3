"""The one-machine stack behind ``make up``: standard library only, so that a bare Python can start it."""
