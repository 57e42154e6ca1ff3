"""The browser's way in and out."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, path

from controlplane.accounts.views import LimitedLoginView

urlpatterns: list[URLPattern | URLResolver] = [
    path("login/", LimitedLoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
