"""Everything that runs Backhaul on machines: the one-machine stack in ``deploy.local``."""
