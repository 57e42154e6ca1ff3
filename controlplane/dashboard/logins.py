"""Whether a browser's login still holds: it may end while a socket is open."""

from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest


def is_login_valid(session_key: str) -> bool:
    """False after a logout, a changed password, a deactivated user or the session's end."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request).is_authenticated
