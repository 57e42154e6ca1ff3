"""How lists of the fleet are narrowed."""

from django.db.models import QuerySet
from django_filters import rest_framework as filters

from connector.protocol import Role
from controlplane.fleet.models import Engine, Operation, Pair, State


class EngineFilter(filters.FilterSet):  # type: ignore[misc]
    role = filters.ChoiceFilter(choices=[(role.value, role.value) for role in Role])
    model = filters.CharFilter()
    state = filters.ChoiceFilter(choices=State.choices, method="filter_state")
    draining = filters.BooleanFilter()

    class Meta:
        model = Engine
        fields: list[str] = []

    def filter_state(self, engines: QuerySet[Engine], name: str, value: str) -> QuerySet[Engine]:
        if value == State.PENDING:
            return engines.filter(approved=False)
        return engines.filter(approved=True, reported_state=value)


class PairFilter(filters.FilterSet):  # type: ignore[misc]
    class Meta:
        model = Pair
        fields = ["source", "target", "direction"]


class OperationFilter(filters.FilterSet):  # type: ignore[misc]
    engine = filters.CharFilter(field_name="engine_name")

    class Meta:
        model = Operation
        fields = ["command", "state"]
