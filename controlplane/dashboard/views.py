"""Serves the built frontend: the page to whoever is logged in, its assets to anyone."""

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.middleware.csrf import get_token
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.dashboard.frontend import Asset, find_asset, render_page

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
IMMUTABLE = "public, max-age=31536000, immutable"
NOT_BUILT = "The frontend is not built. Run npm ci and npm run build in frontend/, or make up, then reload.\n"


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """The live page, with the user's name and CSRF token in its head."""
    index = find_asset(settings.FRONTEND_DIST, "index.html")
    if index is None:
        return HttpResponse(NOT_BUILT, status=503, content_type="text/plain; charset=utf-8")
    body = render_page(index.body, user=request.user.get_username(), csrf_token=get_token(request))
    return HttpResponse(body, headers={"Content-Security-Policy": PAGE_POLICY})


@require_safe
def asset(request: HttpRequest, name: str) -> HttpResponse:
    """A file of the build; its name carries its hash, so that browsers may keep it for good."""
    found = find_asset(settings.FRONTEND_DIST / "assets", name)
    return _asset_response(request, found, IMMUTABLE)


@require_safe
def favicon(request: HttpRequest) -> HttpResponse:
    found = find_asset(settings.FRONTEND_DIST, "favicon.svg")
    return _asset_response(request, found, "public, max-age=86400")


@require_safe
@login_required
def trace(request: HttpRequest, trace_id: str) -> HttpResponse:
    """A stable address for a trace; shows its JSON until the trace has a page of its own."""
    return HttpResponseRedirect(f"/api/v1/traces/{trace_id}")


def _asset_response(request: HttpRequest, found: Asset | None, caching: str) -> HttpResponse:
    if found is None:
        raise Http404
    accepts_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
    response = HttpResponse(found.compressed if accepts_gzip else found.body, content_type=found.content_type)
    response.headers["Cache-Control"] = caching
    if accepts_gzip:
        response.headers["Content-Encoding"] = "gzip"
    patch_vary_headers(response, ["Accept-Encoding"])
    return response
