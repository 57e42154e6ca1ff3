"""Where a request goes: an origin and a path, taken apart once."""

from dataclasses import dataclass

Origin = tuple[str, int, bool]
"""Host, port, whether TLS is spoken."""


@dataclass(frozen=True, slots=True)
class Target:
    """``host`` as the resolver takes it, ``authority`` as the ``Host`` field holds it."""

    origin: Origin
    authority: str
    path: str

    @property
    def host(self) -> str:
        return self.origin[0]

    @property
    def port(self) -> int:
        return self.origin[1]

    @property
    def site(self) -> str:
        return f"http{'s' if self.origin[2] else ''}://{self.authority}"

    def __str__(self) -> str:
        return self.site + self.path

    def head(self, method: str) -> bytes:
        """Request line and ``Host`` field."""
        return f"{method} {self.path} HTTP/1.1\r\nhost: {self.authority}\r\n".encode()
