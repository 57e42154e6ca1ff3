"""What ``make up`` and every deployment run with: the shared settings as they are."""

from controlplane.settings import base

globals().update({name: getattr(base, name) for name in dir(base) if name.isupper()})
