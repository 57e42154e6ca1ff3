"""Which vLLM is let in."""

import pytest

from connector.engine.compat import require_supported_vllm


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "0.32.0+cpu", "0.32.0rc1", "0.32.0.dev3+gabc", "0.32"])
def test_the_checked_release_is_let_in(version: str) -> None:
    require_supported_vllm(version)


@pytest.mark.parametrize(
    "version", ["0.31.9", "0.21.0", "0.33.0", "0.33.0rc1", "1.0", "0.1.dev1+g1", "dev", "", "32.0"]
)
def test_any_other_release_is_refused_in_one_sentence(version: str) -> None:
    with pytest.raises(RuntimeError, match=r"is checked with vLLM 0\.32, not with .*; install that release$"):
        require_supported_vllm(version)
