"""What can go wrong between two HTTP processes, for the caller to tell apart."""


class ExchangeFailedError(Exception):
    """The server gave no (whole) answer. ``reason``: ``connect`` (nothing was sent), ``tls`` (nor was
    anything: no trusted connection could be made), ``reset`` or ``timeout``.

    ``is_stale``: a kept connection was closed before a byte of the answer came, as happens when the server drops an
    idle connection while a request is on its way: the same server may well take it on a fresh connection.
    """

    def __init__(self, reason: str, detail: str, is_stale: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.is_stale = is_stale


class ReplyTooLargeError(Exception):
    """A reply that must fit in memory doesn't."""


class SourceBrokenError(Exception):
    """A relayed reply broke off after its first bytes went out; the client's connection must be cut as well."""
