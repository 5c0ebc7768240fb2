"""TLS before a Redis that speaks none: certificates made now, and a process that ends the TLS."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = self._write(
            name, self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        )

    def issue(self, name: str, *, days: int = 1) -> tuple[Path, Path]:
        """A certificate for a host or an address, and its key; past if the days are below 0."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own: list[x509.GeneralName] = [x509.DNSName(name)]
        with suppress(ValueError):
            own = [x509.IPAddress(ipaddress.ip_address(name))]
        certificate = self._sign(subject, key, x509.SubjectAlternativeName(own), days=days)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        file = self.folder / f"{name}{days}.key"
        file.write_bytes(private)
        return self._write(f"{name}{days}", certificate), file

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType, *, days: int = 1
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).add_extension(extension, critical=True)
        return (
            builder.not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        file = self.folder / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return file


@contextmanager
def tls_before(target: int, certificate: tuple[Path, Path], *, clients_of: Authority | None = None) -> Iterator[int]:
    """A port of this machine that hands on to another what is said to it in TLS; it asks for certificates of `clients_of`."""
    words = [str(target), *map(str, certificate), *([str(clients_of.file)] if clients_of else [])]
    command = [sys.executable, str(Path(__file__).with_name("tls_forwarder.py")), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
