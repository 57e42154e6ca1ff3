"""Everything that depends on vLLM's version, so that a new release has one place to look."""

SUPPORTED_VLLM = ((0, 32), (0, 33))
"""[from, below): the releases whose seams were checked against this connector."""


def require_supported_vllm(version: str) -> None:
    """Raises ``RuntimeError`` with one sentence: an unchecked release could reuse wrong KV silently."""
    numbers = tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdigit())
    low, high = SUPPORTED_VLLM
    if not low <= numbers < high:
        raise RuntimeError(
            f"Backhaul's connector is checked with vLLM {low[0]}.{low[1]}, not with {version}; install that release"
        )
