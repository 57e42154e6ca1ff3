"""Server-sent events of a whole reply (WHATWG HTML, section 9.2)."""

from collections.abc import Iterator


def data_events(body: bytes) -> Iterator[bytes]:
    """The data of each event, whatever its line ends; several lines join."""
    lines: list[bytes] = []
    for line in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []
    if lines:
        yield b"\n".join(lines)
