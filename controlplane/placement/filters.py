"""How lists of sessions and placements are narrowed."""

from django.db.models import QuerySet
from django_filters import rest_framework as filters

from connector.protocol import LeaseState
from controlplane.placement import selectors
from controlplane.placement.models import Placement, Session


class SessionFilter(filters.FilterSet):  # type: ignore[misc]  # django-filter ships no types
    live = filters.BooleanFilter(method="filter_live", help_text="Whether an engine holds some of its KV now.")

    class Meta:
        model = Session
        fields = ["tenant", "model"]

    def filter_live(self, sessions: QuerySet[Session], name: str, value: bool) -> QuerySet[Session]:
        return selectors.live_sessions(sessions, is_live=value)


class PlacementFilter(filters.FilterSet):  # type: ignore[misc]  # django-filter ships no types
    session = filters.CharFilter(field_name="session_id")
    state = filters.ChoiceFilter(choices=[(state.value, state.value) for state in LeaseState])

    class Meta:
        model = Placement
        fields = ["engine", "tenant"]
