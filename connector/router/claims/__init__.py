"""What routers tell each other of turns that run, through Redis, until the agents' feeds tell the rest.

A claim says that a turn of a session runs and what its prompt begins with, where it decodes, and that it ended. Leases
aren't claimed: each router hears them from the engines' agents, so nothing here can take or invent one.

No turn waits for any of it. Without Redis each router goes on with what it knows.
"""
