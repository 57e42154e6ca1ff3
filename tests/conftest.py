"""Of all tests: a machine that is busy with others must not decide."""

from hypothesis import settings

settings.register_profile("backhaul", deadline=None)
settings.load_profile("backhaul")
