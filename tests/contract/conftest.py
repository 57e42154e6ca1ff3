"""These tests need vLLM and numpy, so that only the engine's environment collects them."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]
