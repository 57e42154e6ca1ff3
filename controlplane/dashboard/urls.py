from django.urls import URLPattern, URLResolver, path, re_path

from controlplane.dashboard import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.page, name="dashboard"),
    path("assets/<str:name>", views.asset, name="dashboard-asset"),
    path("favicon.svg", views.favicon, name="dashboard-favicon"),
    re_path(r"^traces/(?P<trace_id>[0-9a-f]{32})$", views.trace, name="trace"),
]
