"""How lists and sums of transfers are narrowed."""

from django_filters import rest_framework as filters

from connector.protocol import Direction, TransferOutcome
from controlplane.transfers.models import PairMinute, Transfer


class TransferFilter(filters.FilterSet):  # type: ignore[misc]  # django-filter ships no types
    direction = filters.ChoiceFilter(choices=[(way.value, way.value) for way in Direction])
    outcome = filters.ChoiceFilter(choices=[(end.value, end.value) for end in TransferOutcome])
    session = filters.CharFilter(field_name="session_id")
    turn = filters.UUIDFilter(field_name="turn_id")
    since = filters.IsoDateTimeFilter(field_name="started_at", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="started_at", lookup_expr="lt")

    class Meta:
        model = Transfer
        fields = ["source", "target"]


class PairMinuteFilter(filters.FilterSet):  # type: ignore[misc]  # django-filter ships no types
    direction = filters.ChoiceFilter(choices=[(way.value, way.value) for way in Direction])
    since = filters.IsoDateTimeFilter(field_name="minute", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="minute", lookup_expr="lt")

    class Meta:
        model = PairMinute
        fields = ["source", "target"]
