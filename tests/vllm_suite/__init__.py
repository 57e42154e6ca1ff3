"""vLLM's own unit tests, taken from its source distribution at run time, run against our connector class."""
