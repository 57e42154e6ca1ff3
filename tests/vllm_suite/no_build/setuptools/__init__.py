"""In the place of the build backend that vLLM's source distribution names, so that pip can fetch it without building.

``pip download`` asks a source distribution's backend for its metadata; vLLM's would want torch and a compiler.
"""
