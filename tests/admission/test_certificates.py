"""Certificates of our own: when they are renewed, that whoever trusts the bundle is never surprised, that replicas
agree; and how the server shows new ones without a restart. With a real API server: tests/cluster/test_webhook.py."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st
from lightkube.models.admissionregistration_v1 import MutatingWebhook, WebhookClientConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret

from partage.admission.certificates import Brought, Shown
from partage.kube.certificates import (
    KEYS,
    Certificates,
    Keeper,
    Lives,
    Pair,
    Place,
    make_authority,
    make_leaf,
    renewed,
    service_names,
)
from partage.model import KubeError, UsageError

if TYPE_CHECKING:
    from partage.kube.client import Client

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
LIVES = Lives(timedelta(days=3650), timedelta(days=90))
NAMES = service_names("hook", "ns")


def step(current: Certificates | None, now: datetime, lives: Lives = LIVES) -> Certificates:
    return renewed(current, "hook", NAMES, now, lives)


def verify(leaf: Pair, bundle: bytes, now: datetime) -> None:
    """Verify as the API server does: for the Service's name, against the bundle."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName("hook.ns.svc"))
    verifier.verify(leaf.parsed, [])


def test_the_first_ones() -> None:
    first = step(None, NOW)
    verify(first.leaf, first.bundle, NOW)
    assert first.leaf.parsed.not_valid_before_utc < NOW, "machines' clocks differ"
    assert not first.leaf.parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert step(first, NOW + timedelta(days=59)) is first, "nothing is due"


def test_a_leaf_is_renewed_at_two_thirds() -> None:
    first = step(None, NOW)
    second = step(first, NOW + timedelta(days=60))
    assert second.leaf != first.leaf
    assert (second.authority, second.bundle) == (first.authority, first.bundle)


def test_a_ca_is_trusted_before_it_signs() -> None:
    lives = Lives(timedelta(days=300), timedelta(days=90))
    first = step(None, NOW, lives)
    due = NOW + timedelta(days=200)
    leaf = make_leaf(first.authority, NAMES, due - timedelta(days=1), lives.leaf)
    held = Certificates(first.authority, leaf, first.bundle)
    changed = step(held, due, lives)
    assert changed.authority != first.authority
    assert changed.leaf == leaf, "still the old one's"
    assert len(x509.load_pem_x509_certificates(changed.bundle)) == 2
    verify(changed.leaf, changed.bundle, due)
    later = step(changed, due + timedelta(days=59), lives)
    assert later.leaf != leaf
    verify(later.leaf, changed.bundle, due + timedelta(days=59))
    with pytest.raises(VerificationError):
        verify(later.leaf, first.bundle, due + timedelta(days=59))
    much_later = step(later, due + timedelta(days=120), lives)
    assert len(x509.load_pem_x509_certificates(much_later.bundle)) == 1, "the old one has expired"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=25), min_size=10, max_size=40))
def test_whoever_has_the_bundle_of_the_step_before_trusts_the_leaf(days: list[int]) -> None:
    """However the looks fall: a bundle that reaches the API server one look late is good enough."""
    lives = Lives(timedelta(days=300), timedelta(days=80))
    now, held = NOW, step(None, NOW, lives)
    for passed in days:
        now += timedelta(days=passed)
        known = held.bundle
        held = step(held, now, lives)
        verify(held.leaf, known, now)
        verify(held.leaf, held.bundle, now)


def _rsa(like: Pair) -> Pair:
    """Return a CA of the same name with another kind of key."""
    key, name = rsa.generate_private_key(65537, 2048), like.parsed.subject
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + LIVES.authority)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private)


@pytest.mark.parametrize("broken", ["names", "expired", "key", "text", "stranger", "kind"])
def test_what_cannot_be_used_is_made_anew(broken: str) -> None:
    sound = step(None, NOW)
    other = make_authority("other", NOW, LIVES.authority)
    found = {
        "names": Certificates(
            sound.authority, make_leaf(sound.authority, ("elsewhere",), NOW, LIVES.leaf), sound.bundle
        ),
        "expired": sound,
        "key": Certificates(sound.authority, Pair(sound.leaf.certificate, other.key), sound.bundle),
        "text": Certificates(sound.authority, Pair(b"x", b"y"), sound.bundle),
        "kind": Certificates(_rsa(sound.authority), sound.leaf, sound.bundle),  # somebody else's, of another algorithm
        "stranger": Certificates(sound.authority, make_leaf(other, NAMES, NOW, LIVES.leaf), sound.bundle),
    }[broken]
    now = NOW + timedelta(days=91 if broken == "expired" else 0)
    made = step(found, now)
    assert made.leaf != found.leaf
    verify(made.leaf, made.bundle, now)


# ---- in a cluster ----------------------------------------------------------------------------------------------------


class Cluster:
    """The few requests that a keeper makes, with versions as the API server has them."""

    def __init__(self) -> None:
        self.secret: Secret | None = None
        self.hooks: dict[str, str | None] = {}
        self.patches = 0
        self.versions = itertools.count(1)

    async def get(self, kind: type, name: str, **_: object) -> Any:
        if kind is Secret:
            if self.secret is None:
                raise KubeError(name, "absent", "", "", status=404)
            return self.secret
        if kind is not MutatingWebhookConfiguration or not self.hooks:
            raise KubeError(name, "absent", "", "", status=404)
        hooks = [
            MutatingWebhook(
                name=hook,
                clientConfig=WebhookClientConfig(caBundle=bundle),
                admissionReviewVersions=["v1"],
                sideEffects="None",
            )
            for hook, bundle in self.hooks.items()
        ]
        return MutatingWebhookConfiguration(webhooks=hooks)

    async def create(self, secret: Secret, **_: object) -> None:
        await asyncio.sleep(0)
        if self.secret is not None:
            raise KubeError("secret", "exists", "", "", status=409)
        self._store(secret)

    async def replace(self, secret: Secret, **_: object) -> None:
        await asyncio.sleep(0)
        assert self.secret is not None
        assert self.secret.metadata is not None
        assert secret.metadata is not None
        if secret.metadata.resourceVersion != self.secret.metadata.resourceVersion:
            raise KubeError("secret", "changed", "", "", status=409)
        self._store(secret)

    def _store(self, secret: Secret) -> None:
        meta = ObjectMeta(name="s", namespace="ns", resourceVersion=str(next(self.versions)))
        self.secret = Secret(metadata=meta, data=secret.data, type=secret.type)

    async def patch(self, _kind: type, _name: str, body: Any, **_: object) -> None:
        self.patches += 1
        for hook in body["webhooks"]:
            self.hooks[hook["name"]] = hook["clientConfig"]["caBundle"]


class HandClock:
    """Time that stands where it is put."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        return self.at.timestamp()

    def date(self) -> datetime:
        return self.at

    async def sleep(self, _: float) -> None:
        await asyncio.sleep(0)


def keeper(cluster: Cluster, clock: HandClock) -> Keeper:
    return Keeper(cast("Client", cluster), clock, Place("ns", "s", "hook", ("hook",)), LIVES)


def test_replicas_agree() -> None:
    """Ten at once, at the first start and at every renewal: all show what the Secret holds."""

    async def run() -> None:
        cluster, clock = Cluster(), HandClock()
        keepers = [keeper(cluster, clock) for _ in range(10)]
        for days in (0, 60, 61, 2440, 2500):
            clock.at = NOW + timedelta(days=days)
            held = set(await asyncio.gather(*(each.settle() for each in keepers)))
            assert len(held) == 1, days
            assert cluster.secret is not None
            assert cluster.secret.data is not None
            assert base64.b64decode(cluster.secret.data["tls.crt"]) == held.pop().leaf.certificate
            assert set(cluster.secret.data) == set(KEYS)

    asyncio.run(run())


def test_a_secret_that_holds_something_else_is_filled_anew() -> None:
    async def run() -> None:
        cluster, clock = Cluster(), HandClock()
        cluster.secret = Secret(
            metadata=ObjectMeta(name="s", resourceVersion="0"), data={"tls.crt": "!"}, type="Opaque"
        )
        held = await keeper(cluster, clock).settle()
        verify(held.leaf, held.bundle, NOW)
        assert cluster.secret.type == "Opaque", "which the API server does not let change"

    asyncio.run(run())


def test_configurations_trust_the_bundle_and_are_written_on_change_only() -> None:
    async def run() -> None:
        cluster = Cluster()
        keep = keeper(cluster, HandClock())
        assert await keep.publish(b"A") == ["MutatingWebhookConfiguration hook", "ValidatingWebhookConfiguration hook"]
        cluster.hooks = {"a": None, "b": base64.b64encode(b"A").decode()}
        assert await keep.publish(b"A") == ["ValidatingWebhookConfiguration hook"]
        await keep.publish(b"A")
        assert (cluster.patches, set(cluster.hooks.values())) == (1, {base64.b64encode(b"A").decode()})
        cluster.hooks["a"] = "somebody applied the manifest again"
        await keep.publish(b"A")
        assert cluster.hooks["a"] == cluster.hooks["b"]

    asyncio.run(run())


# ---- shown -----------------------------------------------------------------------------------------------------------


async def handshake(shown: Shown, authority: Pair) -> bytes:
    """Return the certificate that a connection is shown which begins now."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=shown.context)
    async with server:
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="hook")
        told: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return told


def test_files_are_shown_and_shown_anew(tmp_path: Path) -> None:
    """A new pair is shown to the next connection; what cannot be read or does not belong together changes nothing."""

    async def run() -> None:
        authority = make_authority("ca", datetime.now(UTC), timedelta(days=10))
        files = tmp_path / "tls.crt", tmp_path / "tls.key"
        shown = Shown(Brought(*files), HandClock(), 60)
        await shown.look()
        assert not shown.ready.is_set()

        def put(pair: Pair) -> None:
            files[0].write_bytes(pair.certificate)
            files[1].write_bytes(pair.key)

        first, second = (make_leaf(authority, ("hook",), datetime.now(UTC), timedelta(days=9)) for _ in range(2))
        put(first)
        await shown.look()
        assert shown.ready.is_set()
        assert shown.expires == first.parsed.not_valid_after_utc.timestamp()
        before = await handshake(shown, authority)
        files[1].write_bytes(second.key)
        await shown.look()
        assert await handshake(shown, authority) == before, "halves that do not belong together"
        files[0].write_bytes(second.certificate)
        files[1].write_bytes(first.key)  # read between the two writes of whoever renews them
        await shown.look()
        assert await handshake(shown, authority) == before, "the other way round"
        files[0].write_bytes(first.certificate)
        files[1].unlink()
        await shown.look()
        assert await handshake(shown, authority) == before
        put(second)
        await shown.look()
        assert await handshake(shown, authority) != before

    asyncio.run(run())


class Mounted:
    """A Secret's directory in a container: kubelet writes what is new beside the old, and turns a link."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.count = 0
        for name in ("tls.crt", "tls.key"):
            (place / name).symlink_to(Path("..data") / name)

    def renew(self, pair: Pair) -> None:
        self.count += 1
        fresh = self.place / f"..2026_12_01_{self.count}"
        fresh.mkdir()
        (fresh / "tls.crt").write_bytes(pair.certificate)
        (fresh / "tls.key").write_bytes(pair.key)
        old = self.place / f"..2026_12_01_{self.count - 1}"
        (self.place / "..data_tmp").symlink_to(fresh.name)
        (self.place / "..data_tmp").rename(self.place / "..data")
        if old.exists():
            shutil.rmtree(old)


def test_a_secret_that_is_mounted_is_shown_anew_when_kubelet_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the link is turned between the reading of both files: never half of each."""

    async def run() -> None:
        authority = make_authority("ca", datetime.now(UTC), timedelta(days=10))
        pairs = [make_leaf(authority, ("hook",), datetime.now(UTC), timedelta(days=9)) for _ in range(3)]
        mounted = Mounted(tmp_path)
        mounted.renew(pairs[0])
        shown = Shown(Brought(tmp_path / "tls.crt", tmp_path / "tls.key"), HandClock(), 60)
        await shown.look()
        seen = [await handshake(shown, authority)]
        mounted.renew(pairs[1])
        await shown.look()
        seen.append(await handshake(shown, authority))
        read, turn = Path.read_bytes, [pairs[2]]

        def turned(path: Path) -> bytes:
            found = read(path)
            if path.name == "tls.crt" and turn:
                mounted.renew(turn.pop())
            return found

        monkeypatch.setattr(Path, "read_bytes", turned)
        await shown.look()
        seen.append(await handshake(shown, authority))
        assert seen == [pair.parsed.public_bytes(serialization.Encoding.DER) for pair in pairs]

    asyncio.run(run())


def test_files_that_are_not_there() -> None:
    with pytest.raises(UsageError, match="mount the Secret"):
        asyncio.run(Brought(Path("/nonexistent/a"), Path("/nonexistent/b")).current())
