"""Liveness and readiness for supervisors, and counts for Prometheus."""

import logging
from functools import cache

from django.core.cache import caches
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """The process answers; it says nothing of its databases."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when Postgres, Redis and the migrations are there; 503 with the part that is not."""
    checks = {"database": _is_database_ready(), "redis": _is_redis_ready()}
    checks["migrations"] = checks["database"] and _has_migrated()
    missing = [part for part, is_ready in checks.items() if not is_ready]
    if missing:
        logger.warning("event=not_ready missing=%s", ",".join(missing))
    return JsonResponse(checks, status=503 if missing else 200)


def _is_database_ready() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        logger.warning("event=database_not_ready error=%r", str(error))
        return False
    return True


def _is_redis_ready() -> bool:
    try:
        caches["default"].get("readyz")
    except RedisError as error:
        logger.warning("event=redis_not_ready error=%r", str(error))
        return False
    return True


def _has_migrated() -> bool:
    """Asked of the database until it is true once; migrations are not undone under a running process."""
    try:
        return _assert_migrated()
    except _NotMigratedError:
        return False


class _NotMigratedError(Exception):
    """Keeps a negative answer out of the cache."""


@cache
def _assert_migrated() -> bool:
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise _NotMigratedError
    return True
