"""Cursor pages: stable while rows arrive, bounded in size."""

from rest_framework.pagination import CursorPagination


class TimeOrderedPagination(CursorPagination):
    """Newest first, in the order of the UUIDv7 primary key, which is unique: no row is skipped or shown twice.

    A view whose rows have another unique order sets ``pagination_class`` to a subclass with its own ``ordering``.
    """

    ordering = ("-id",)
    page_size = 50
    max_page_size = 500
    page_size_query_param = "page_size"
