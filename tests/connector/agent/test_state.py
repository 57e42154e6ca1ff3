"""The state directory: private, owned by one agent, its policy whole or absent."""

import os
import stat
from pathlib import Path

import pytest

from connector.agent.environment import ConfigurationError
from connector.agent.policy import PolicyDesk
from connector.agent.state import StateDirectory
from connector.protocol import PolicyValues, SetPolicy

POLICY = SetPolicy(revision=4, values=PolicyValues(kv_recompute_threshold=256))


def test_directory_and_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        state = StateDirectory(tmp_path / "deep" / "state")
        state.store_policy(POLICY)
    finally:
        os.umask(before)
    for path, mode in ((state.path, 0o700), (state.spool_path, 0o700), (state.path / "policy.json", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    state.close()


def test_stored_policy_is_loaded_and_replaced_whole(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    assert state.load_policy() is None
    state.store_policy(POLICY)
    assert state.load_policy() == POLICY
    newer = SetPolicy(revision=5, values=PolicyValues())
    state.store_policy(newer)
    assert state.load_policy() == newer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "policy.json", "spool"]
    state.close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"type":"SetPolicy","revision":1}', b"\xff"])
def test_unreadable_policy_counts_as_none_and_is_logged(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = StateDirectory(tmp_path)
    (tmp_path / "policy.json").write_bytes(content)
    assert state.load_policy() is None
    assert "policy_unreadable" in caplog.text
    state.close()


def test_second_agent_is_turned_away_until_the_first_is_gone(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path)
    with pytest.raises(ConfigurationError, match="in use by another agent"):
        StateDirectory(tmp_path)
    first.close()
    StateDirectory(tmp_path).close()


def test_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"can't be used: Not a directory\."):
        StateDirectory(tmp_path / "file" / "state")


async def test_disk_that_fails_does_not_hold_the_policy_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = StateDirectory(tmp_path)
    (tmp_path / "policy.json.new").mkdir()
    sent: list[object] = []

    def send(message: object) -> bool:
        sent.append(message)
        return True

    await PolicyDesk(state, send).accept(POLICY)
    assert sent == [POLICY]
    assert "policy_not_stored" in caplog.text
    state.close()
