"""Which certificate the webhook shows: the one that is made and kept in the cluster, or files that somebody brings.

A new one is shown to connections that begin after it came; those that are open stay. Nothing is restarted. Owned by the
program's task group (`run`). What can go wrong: the API server or the files cannot be read now; what is shown stays,
and the log says why.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from cryptography import x509

from partage.kube.certificates import Keeper, Lives, Pair, Place
from partage.model import KubeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partage.admission.settings import TlsSettings
    from partage.kube.client import Client
    from partage.kube.clock import Clock

FIRST_S: Final = 2.0  # between attempts while there is none yet
READS: Final = 3  # of files that change meanwhile; halves of two pairs are not shown
log = structlog.get_logger("partage.webhook.certificates")


class Source(Protocol):
    """Where certificates come from."""

    async def current(self) -> Pair:
        """Return the one that holds now; raises KubeError or UsageError."""


class Made:
    """Those made here: kept in a Secret, trusted by the webhook configurations before they are shown."""

    def __init__(self, client: Client, clock: Clock, tls: TlsSettings) -> None:
        place = Place(tls.namespace, tls.secret, tls.service, tls.configurations)
        lives = Lives(timedelta(hours=tls.authority_hours), timedelta(hours=tls.leaf_hours))
        self._keeper = Keeper(client, clock, place, lives)
        self._absent: list[str] = []

    async def current(self) -> Pair:
        """Return the leaf; raises KubeError."""
        held = await self._keeper.settle()
        absent = await self._keeper.publish(held.bundle)
        if absent != self._absent:
            log.warning("configurations", absent=absent, step="apply deploy/webhook: nobody asks this webhook yet")
            self._absent = absent
        return held.leaf


class Brought:
    """Those that somebody else puts into files and renews; the configurations are that one's to keep.

    Kubelet renews the files of a mounted Secret by turning one link, so both are looked up anew each time; turned
    between two reads they would be halves of two pairs, so they are read until they are the same twice.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key

    async def current(self) -> Pair:
        """Return what the files hold; raises UsageError."""
        try:
            pair = self._read()
            for _ in range(READS):
                before, pair = pair, self._read()
                if pair == before:
                    break
            return pair
        except OSError as error:
            step = "mount the Secret there"
            raise UsageError(str(error.filename), error.strerror, "a file of PEM that can be read", step) from error

    def _read(self) -> Pair:
        return Pair(self._certificate.read_bytes(), self._key.read_bytes())


class Shown:
    """The certificate in force. `context` is what the server's socket uses."""

    def __init__(self, source: Source, clock: Clock, check_s: float) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ready = asyncio.Event()
        self.expires = 0.0
        self._source = source
        self._clock = clock
        self._check_s = check_s
        self._pair: Pair | None = None

    async def run(self) -> None:
        """Show the certificate that holds, from now on for ever."""
        while True:
            await self.look()
            await self._clock.sleep(self._check_s if self._pair else min(FIRST_S, self._check_s))

    async def look(self) -> None:
        """Show what holds now, where it is another than before."""
        try:
            pair = await self._source.current()
            if pair != self._pair:
                self._show(pair)
        except (KubeError, UsageError) as error:
            log.warning("certificate", error=str(error), shown="as before" if self._pair else "none yet")

    def _show(self, pair: Pair) -> None:
        try:
            # Into one that nobody uses first: a certificate without its key would take the place of what is shown.
            _load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain, pair)
            expires = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
            _load(self.context.load_cert_chain, pair)
        except (ssl.SSLError, ValueError) as error:
            step = "renew both together"
            raise UsageError("certificate", str(error), "a certificate and its private key, PEM", step) from error
        self._pair = pair
        self.expires = expires.timestamp()
        self.ready.set()
        log.info("certificate", expires=expires.isoformat())


def _load(load: Callable[[str], None], pair: Pair) -> None:
    """Load a pair, which `ssl` takes from files only, from one that is in memory and nowhere else."""
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pair.certificate + b"\n" + pair.key)
        load(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
