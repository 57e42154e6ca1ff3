"""The class layout of vLLM 0.21.0, written by hand: what our halves extend, override, call or read, and no more.

``test_layout_0_21.py`` compares its seams with the fixture that was read of the real release, so that it can't drift.
"""

__version__ = "0.21.0"
