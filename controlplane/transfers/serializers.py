"""How transfers and their sums look in REST."""

from rest_framework import serializers

from controlplane.transfers.models import PairMinute, Transfer
from controlplane.transfers.rollups import BUCKET_BOUNDS_MS


class TransferSerializer(serializers.ModelSerializer[Transfer]):
    session = serializers.CharField(source="session_id")
    turn = serializers.UUIDField(source="turn_id")
    lease = serializers.CharField(source="lease_id")

    class Meta:
        model = Transfer
        fields = [
            "id",
            "direction",
            "source",
            "target",
            "session",
            "turn",
            "lease",
            "tokens",
            "blocks",
            "bytes",
            "post_ms",
            "duration_ms",
            "outcome",
            "reason",
            "ranks",
            "started_at",
            "trace_id",
            "span_id",
        ]


class TotalsSerializer(serializers.Serializer[object]):
    direction = serializers.CharField()
    outcome = serializers.CharField()
    count = serializers.IntegerField()
    tokens = serializers.IntegerField(source="tokens_sum")
    blocks = serializers.IntegerField(source="blocks_sum")
    bytes = serializers.IntegerField(source="bytes_sum")
    post_ms = serializers.FloatField(source="post_ms_sum", help_text="Sum.")
    duration_ms = serializers.FloatField(source="duration_ms_sum", help_text="Sum.")
    duration_ms_max = serializers.FloatField()


class SummarySerializer(serializers.Serializer[object]):
    """Sums over every transfer that the filters let through, whatever its outcome, and per direction and outcome."""

    count = serializers.IntegerField()
    tokens = serializers.IntegerField()
    blocks = serializers.IntegerField()
    bytes = serializers.IntegerField()
    groups = TotalsSerializer(many=True)


class PairMinuteSerializer(serializers.ModelSerializer[PairMinute]):
    bucket_bounds_ms = serializers.SerializerMethodField(help_text="Inclusive; one more bucket takes what is beyond.")

    class Meta:
        model = PairMinute
        fields = [
            "minute",
            "source",
            "target",
            "direction",
            "count",
            "failures",
            "tokens",
            "bytes",
            "duration_ms_sum",
            "duration_ms_max",
            "buckets",
            "bucket_bounds_ms",
        ]

    def get_bucket_bounds_ms(self, minute: PairMinute) -> list[float]:
        return list(BUCKET_BOUNDS_MS)
