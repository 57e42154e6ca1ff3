"""What REST shows of an engine is what its agent reports."""

from connector.protocol import EngineLoad
from controlplane.fleet.serializers import EngineLoadSerializer


def test_every_gauge_of_an_engine_is_shown() -> None:
    assert set(EngineLoadSerializer().fields) == set(EngineLoad.__struct_fields__)
