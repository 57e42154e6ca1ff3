"""How REST addresses look: no trailing slash, as documented; one more is forgiven."""

from typing import Any

from rest_framework.routers import SimpleRouter


def api_router() -> SimpleRouter:
    router = SimpleRouter()
    router.trailing_slash = "/?"
    return router


def without_trailing_slashes(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Schema hook: documents each address in its one canonical form."""
    return {**result, "paths": {path.rstrip("/"): item for path, item in result["paths"].items()}}
