"""A server's own certificates, for the API server to trust: made here, kept in a Secret, renewed, never run out.

A CA of our own signs a leaf for the Service's names; both lie in one Secret, so replicas agree: whoever writes first
wins, the others read. A leaf is renewed at two thirds of its life. So is the CA, and its successor is trusted (it
stands in the bundle beside the old one) before it signs anything: the next leaf is the first. Pure but for what
`Keeper` does: read and write the Secret, and write the bundle into the webhook configurations. What can go wrong:
KubeError where the API server refuses; a Secret that cannot be read is made anew (its CA with it).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret

from partage.kube.client import PatchType
from partage.model import KubeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.kube.client import Client
    from partage.kube.clock import Clock

BACKDATED: Final = timedelta(minutes=5)  # machines' clocks differ
RENEW: Final = 2 / 3  # of a certificate's life
CONFLICT: Final = 409
ABSENT: Final = 404
KEYS: Final = ("ca.crt", "ca.key", "tls.crt", "tls.key", "bundle.crt")
TRIES: Final = 5
CONFIGURATIONS: Final = (MutatingWebhookConfiguration, ValidatingWebhookConfiguration)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        """The certificate's parts."""
        return x509.load_pem_x509_certificate(self.certificate)

    def is_due(self, now: datetime) -> bool:
        """Whether two thirds of its life are over."""
        parsed = self.parsed
        begin = parsed.not_valid_before_utc + BACKDATED
        return now >= begin + (parsed.not_valid_after_utc - begin) * RENEW


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the Secret holds: the CA, the leaf, and all CAs that are to be trusted, PEM."""

    authority: Pair
    leaf: Pair
    bundle: bytes


@dataclass(frozen=True, slots=True)
class Lives:
    """How long certificates live."""

    authority: timedelta
    leaf: timedelta


def make_authority(common: str, now: datetime, life: timedelta) -> Pair:
    """Return a new CA; it can sign leaves and nothing that signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{common} {now:%Y-%m-%dT%H:%M:%SZ}")  # two of them in one bundle must differ
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    made = _builder(name, name, key, now, life)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _signed(made, key, key)


def make_leaf(authority: Pair, names: Sequence[str], now: datetime, life: timedelta) -> Pair:
    """Return a new server certificate for these DNS names."""
    issuer = authority.parsed
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101 -- of our own making
    key = ec.generate_private_key(ec.SECP256R1())
    made = _builder(_name(names[0]), issuer.subject, key, now, min(life, issuer.not_valid_after_utc - now))
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return _signed(made, key, signer)


def renewed(
    current: Certificates | None, common: str, names: Sequence[str], now: datetime, lives: Lives
) -> Certificates:
    """Return what is to be held now: `current` itself where nothing is due.

    A CA and a leaf are never renewed in one step: a leaf's CA has been in the bundle since the step before.
    """
    if current is None or not _is_sound(current, names, now):
        authority = make_authority(common, now, lives.authority)
        return Certificates(authority, make_leaf(authority, names, now, lives.leaf), authority.certificate)
    if current.leaf.is_due(now):
        leaf = make_leaf(current.authority, names, now, lives.leaf)
        return Certificates(current.authority, leaf, _unexpired(current.bundle, now))
    if current.authority.is_due(now):
        authority = make_authority(common, now, lives.authority)
        return Certificates(authority, current.leaf, authority.certificate + _unexpired(current.bundle, now))
    return current


def _is_sound(current: Certificates, names: Sequence[str], now: datetime) -> bool:
    """Whether the API server can trust the leaf: for these names, in time, signed by one of the bundle."""
    try:
        leaf = current.leaf.parsed
        subjects = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        trusted = {found.subject for found in x509.load_pem_x509_certificates(current.bundle)}
        for pair in (current.leaf, current.authority):
            key = serialization.load_pem_private_key(pair.key, None)
            if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != pair.parsed.public_key():
                return False
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    valid = leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc
    named = set(names) <= set(subjects.get_values_for_type(x509.DNSName))
    return valid and named and leaf.issuer in trusted and now < current.authority.parsed.not_valid_after_utc


def _unexpired(bundle: bytes, now: datetime) -> bytes:
    found = [one for one in x509.load_pem_x509_certificates(bundle) if one.not_valid_after_utc > now]
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in found)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - BACKDATED).not_valid_after(now + life)


def _signed(made: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(made.sign(signer, hashes.SHA256()).public_bytes(pem), private)


# ---- in the cluster --------------------------------------------------------------------------------------------------


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """Return the names under which the API server and people reach a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}", service, f"{service}.{namespace}.svc.cluster.local")


@dataclass(frozen=True, slots=True)
class Place:
    """Whose certificates they are: the Secret, the Service, and the webhook configurations that are to trust them."""

    namespace: str
    secret: str
    service: str
    configurations: Sequence[str] = ()


class Keeper:
    """Holds one Secret's certificates as they are to be; any number of replicas may do so at once."""

    def __init__(self, client: Client, clock: Clock, place: Place, lives: Lives) -> None:
        self._client = client
        self._clock = clock
        self._place = place
        self._lives = lives

    async def settle(self) -> Certificates:
        """Return the certificates that hold now, renewed where due; the same for all replicas. Raises KubeError."""
        names = service_names(self._place.service, self._place.namespace)
        for _ in range(TRIES):
            secret = await self._read()
            current = _certificates_of(secret) if secret else None
            wanted = renewed(current, self._place.service, names, self._clock.date(), self._lives)
            if wanted is current:
                return wanted
            if await self._write(secret, wanted):
                return wanted
        where = f"secret {self._place.namespace}/{self._place.secret}"
        raise KubeError(where, f"changed {TRIES} times meanwhile", "one writer at a time", "see who else writes it")

    async def _read(self) -> Secret | None:
        try:
            return await self._client.get(Secret, self._place.secret, namespace=self._place.namespace)
        except KubeError as error:
            if error.status != ABSENT:
                raise
            return None

    async def _write(self, before: Secret | None, wanted: Certificates) -> bool:
        """Write them where nobody else has meanwhile; return whether."""
        data = {key: base64.b64encode(value).decode() for key, value in zip(KEYS, _parts(wanted), strict=True)}
        meta = ObjectMeta(name=self._place.secret, namespace=self._place.namespace)
        if before is not None and before.metadata is not None:
            meta = before.metadata
        kind = before.type if before else "kubernetes.io/tls"  # it cannot be changed
        secret = Secret(metadata=meta, data=data, type=kind)
        try:
            if before is None:
                await self._client.create(secret, namespace=self._place.namespace)
            else:
                await self._client.replace(secret, name=self._place.secret, namespace=self._place.namespace)
        except KubeError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True

    async def publish(self, bundle: bytes) -> list[str]:
        """Have the webhook configurations trust this bundle; return those that are not there. Raises KubeError."""
        text = base64.b64encode(bundle).decode()
        absent: list[str] = []
        for name in self._place.configurations:
            for kind in CONFIGURATIONS:
                try:
                    found: Any = await self._client.get(kind, name)
                except KubeError as error:
                    if error.status != ABSENT:
                        raise
                    absent.append(f"{kind.__name__} {name}")
                    continue
                hooks = [hook.name for hook in found.webhooks or () if hook.clientConfig.caBundle != text]
                if hooks:
                    body = {"webhooks": [{"name": hook, "clientConfig": {"caBundle": text}} for hook in hooks]}
                    await self._client.patch(kind, name, body, kind=PatchType.STRATEGIC)
        return absent


def _parts(held: Certificates) -> tuple[bytes, ...]:
    """Return what stands under `KEYS`."""
    authority, leaf = held.authority, held.leaf
    return authority.certificate, authority.key, leaf.certificate, leaf.key, held.bundle


def _certificates_of(secret: Secret) -> Certificates | None:
    """Return what a Secret holds, None where it is not what we keep there."""
    data = secret.data or {}
    try:
        parts = [base64.b64decode(data[key], validate=True) for key in KEYS]
    except (KeyError, ValueError):
        return None
    return Certificates(Pair(parts[0], parts[1]), Pair(parts[2], parts[3]), parts[4])
