"""Certificates for tests, made by the ``openssl`` command: authorities, and servers' of theirs."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONFIG = """
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""

HERE = "IP:127.0.0.1, DNS:localhost"


@dataclass(frozen=True)
class Pair:
    """``name``: the certificate's common name."""

    name: str
    cert: Path
    key: Path

    def copy_to(self, other: "Pair") -> None:
        """Replaces the other's files in place of renewing them: key first, as people do."""
        other.key.write_bytes(self.key.read_bytes())
        other.cert.write_bytes(self.cert.read_bytes())


def make_authority(folder: Path, name: str) -> Pair:
    return _make(folder, name, "authority", HERE)


def make_server(folder: Path, name: str, authority: Pair, names: str = HERE) -> Pair:
    return _make(folder, name, "server", names, "-CA", str(authority.cert), "-CAkey", str(authority.key))


def trusting(authority: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.cert))


def _make(folder: Path, name: str, extensions: str, names: str, *signing: str) -> Pair:
    config, pair = folder / f"{name}.cnf", Pair(name, folder / f"{name}.pem", folder / f"{name}.key")
    config.write_text(CONFIG.format(names=names))
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", str(pair.key), "-out", str(pair.cert))
    made = ("-config", str(config), "-extensions", extensions, "-subj", f"/CN={name}", "-days", "2")
    subprocess.run(("openssl", "req", "-x509", *curve, *files, *made, *signing), check=True, capture_output=True)
    pair.key.chmod(0o600)
    return pair
