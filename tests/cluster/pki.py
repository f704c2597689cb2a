"""Certificates and kubeconfigs of one control plane, all from a CA of its own.

Called by the control plane and by the node. Elliptic keys, since a dozen of them cost milliseconds. What can go wrong:
nothing but a full disk.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path


def name_of(common: str, organization: str | None = None) -> x509.Name:
    """Return a subject: for a client the API server reads its user from CN and its groups from O."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def save_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    """Write a private key so that only its owner reads it."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


@dataclass(frozen=True)
class Authority:
    """A certificate authority whose files lie in `directory`: ca.crt, ca.key and a pair for each name issued."""

    directory: Path

    @cached_property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """The CA's key, made once."""
        return ec.generate_private_key(ec.SECP256R1())

    @property
    def certificate(self) -> Path:
        """The CA's certificate file."""
        return self.directory / "ca.crt"

    def establish(self) -> None:
        """Write the CA's own certificate."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._sign("ca", name_of("partage-test-ca"), self.key, authority=True, names=())
        save_key(self.key, self.directory / "ca.key")

    def issue(self, name: str, common: str, organization: str | None = None, names: tuple[str, ...] = ()) -> None:
        """Write NAME.crt and NAME.key; `names` are the DNS names and addresses that a server answers to."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._sign(name, name_of(common, organization), key, authority=False, names=names)
        save_key(key, self.directory / f"{name}.key")

    def key_pair(self, name: str) -> None:
        """Write NAME.key, and NAME.pub with its public half: what service-account tokens are signed with."""
        key = ec.generate_private_key(ec.SECP256R1())
        save_key(key, self.directory / f"{name}.key")
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.directory / f"{name}.pub").write_bytes(public)

    def _sign(
        self, name: str, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool, names: tuple[str, ...]
    ) -> None:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name_of("partage-test-ca"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))  # a test turns an agent's clock back by one
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([alternative(n) for n in names]), False)
        if not authority:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, False)
        signed = builder.sign(self.key, hashes.SHA256())
        (self.directory / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def kubeconfig(self, name: str, server: str, path: Path) -> Path:
        """Write a kubeconfig for the pair NAME; JSON, which every reader of YAML takes."""
        user = {
            "client-certificate": str(self.directory / f"{name}.crt"),
            "client-key": str(self.directory / f"{name}.key"),
        }
        return write_kubeconfig(path, server, self.certificate, user)


def write_kubeconfig(path: Path, server: str, certificate: Path, user: dict[str, str]) -> Path:
    """Write a kubeconfig with one context; `user` holds certificate files or a token."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(certificate)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def alternative(name: str) -> x509.GeneralName:
    """Return a subject alternative name: an address where it parses as one, a DNS name else."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
