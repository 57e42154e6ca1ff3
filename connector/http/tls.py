"""TLS contexts of server and client: 1.2 at least, certificates checked, new ones taken by new handshakes only."""

import ssl
import stat
from collections.abc import Callable
from pathlib import Path

PROTOCOLS = ["http/1.1"]

CurrentContext = Callable[[], ssl.SSLContext]
"""The context for a handshake that begins now."""


class TlsFileError(ValueError):
    """A file that can't be used; one sentence for the operator, without the file's content."""


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """Of a certificate with its chain, and its key. Raises ``TlsFileError``."""
    _check_readable(cert_file, "certificate")
    _check_private(key_file)
    context = _bare(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert_file, key_file, _no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(f"the key {key_file} doesn't belong to the certificate {cert_file}") from None
        why = error.reason or "not PEM"
        raise TlsFileError(f"{cert_file} and {key_file} are no certificate and key in PEM ({why})") from None
    except OSError as error:
        raise TlsFileError(f"{cert_file} or {key_file} cannot be read ({error.strerror})") from None
    return context


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the authorities of the file and no others, or the system's without one. Raises ``TlsFileError``."""
    context = _bare(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
        return context
    _check_readable(ca_file, "authorities' file")
    try:
        context.load_verify_locations(ca_file)
    except (ssl.SSLError, OSError):
        raise TlsFileError(f"{ca_file} holds no certificate in PEM") from None
    return context


def steady_context(current: CurrentContext) -> ssl.SSLContext:
    """A server's context that hands each handshake to the one that is current then.

    Listeners keep one context for good, and exchanging a context's own certificate isn't atomic: a pair that doesn't
    match would be left in it.
    """

    def hand_over(handshake: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _of: ssl.SSLContext) -> None:
        handshake.context = current()

    context = _bare(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = hand_over
    return context


def _bare(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    return context


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise TlsFileError("the key is encrypted; a server that restarts by itself needs it without a password")


def _check_readable(path: Path, what: str) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsFileError(f"the {what} {path} cannot be read ({error.strerror})") from None


def _check_private(path: Path) -> None:
    """The owner's, and at most a group's to read, as Kubernetes and ``ssl-cert`` hand keys out."""
    _check_readable(path, "key")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o027:
        raise TlsFileError(f"the key {path} is readable by others (mode {mode:03o}); run chmod 600 on it")
