"""What each release of vLLM looks like where our connector touches it: read from its sources, never imported."""
