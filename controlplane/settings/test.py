"""Settings for tests: real Postgres and Redis, cheap password hashing, no persistent surprises."""

from controlplane.settings import base

globals().update({name: getattr(base, name) for name in dir(base) if name.isupper()})

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
FRONTEND_DIST = base.FRONTEND_DIST
