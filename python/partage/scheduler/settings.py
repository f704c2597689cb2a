"""What an administrator can decide about the scheduler: every key of its file, with its default.

The structures below are the only list of keys: the file's layout, the flags, the variables and the reference page all
come from them (`partage.configuration`). Called by the program's start. What can go wrong: UsageError names the key,
the value and what is accepted.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

from partage.configuration import Layout, Section, key
from partage.devices.ask_settings import AskSettings
from partage.model import UsageError, names
from partage.model.ask import CardPolicy, NodePolicy
from partage.model.names import PORT_EXTENDER, PORT_METRICS
from partage.scheduler.plan import Defaults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partage.devices.requests import AskOptions

API_VERSION: Final = "config.partage.io/v1alpha1"
KIND: Final = "SchedulerConfiguration"
FILE: Final = "/etc/partage/scheduler.yaml"
POD_NAME: Final = "POD_NAME"


class TlsSettings(Section, frozen=True, kw_only=True):
    """Certificates of the extender; needed where it listens on more than the loopback interface."""

    certificate: Annotated[str, key("The server's certificate and what signed it, PEM.")] = ""
    private_key: Annotated[str, key("Its private key, PEM.")] = ""
    client_authority: Annotated[str, key("What signs kube-scheduler's certificate; nobody else is answered.")] = ""


class ExtenderSettings(Section, frozen=True, kw_only=True):
    """Where kube-scheduler asks."""

    address: Annotated[str, key("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, key("Port to listen on.", ge=1, le=65535)] = PORT_EXTENDER
    request_mib: Annotated[int, key("The longest question that is read, MiB.", ge=1, le=1024)] = 64
    patience_seconds: Annotated[
        float, key("How long a question waits for the books to be ready; below kube-scheduler's httpTimeout.", ge=0)
    ] = 5.0
    tls: TlsSettings = TlsSettings()


class ElectionSettings(Section, frozen=True, kw_only=True):
    """How it is known whether the kube-scheduler beside this program leads; not read with `leader: always`."""

    metrics: Annotated[str, key("Where that kube-scheduler tells so.")] = "https://127.0.0.1:10259/metrics"
    authority: Annotated[str, key("What signs its certificate, PEM; empty: its own, on the loopback interface.")] = ""
    token_file: Annotated[str, key("Token to ask it with; empty: the service account's, or the kubeconfig's.")] = ""
    lease: Annotated[str, key("The Lease for which it stands, `namespace/name`.")] = (
        f"{names.NAMESPACE}/{names.SCHEDULER}"
    )
    every_seconds: Annotated[float, key("How often it is asked.", ge=0.1, le=60)] = 2.0
    host: Annotated[
        str, key("What this replica's identity in the Lease begins with, and no other's; empty: the host's name, `_`.")
    ] = ""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Figures, health and readiness over HTTP."""

    address: Annotated[str, key("Address to listen on; empty: all, of IPv4 and IPv6.")] = names.EVERY_ADDRESS
    port: Annotated[int, key("Port to listen on; 0: none.", ge=0, le=65535)] = PORT_METRICS
    cards: Annotated[bool, key("Show what is promised of every card and to every pod.")] = True
    hami_names: Annotated[bool, key("Show figures of cards and pods under HAMi's names too.")] = True


class BooksSettings(Section, frozen=True, kw_only=True):
    """How long promises hold, and how often the books are proved."""

    reservation_seconds: Annotated[float, key("How long a place is kept for a bind that does not come.", ge=1)] = 30.0
    audit_seconds: Annotated[float, key("How often the books are counted anew; 0: never.", ge=0)] = 300.0


class PlacementSettings(Section, frozen=True, kw_only=True):
    """Where pods go that do not say themselves."""

    node_policy: Annotated[
        NodePolicy, key("Nodes that are used most (binpack) or least (spread), where a pod names none.")
    ] = "binpack"
    card_policies: Annotated[
        tuple[CardPolicy, ...],
        key("Which cards of a node where a pod names none; of several, the later ones decide between equals."),
    ] = ("spread",)

    def defaults(self) -> Defaults:
        """Return it as the books take it."""
        return Defaults(self.node_policy, self.card_policies)


class Settings(Section, frozen=True, kw_only=True):
    """All of it."""

    api_version: Annotated[Literal["config.partage.io/v1alpha1"], key("Version of this document.")] = API_VERSION
    kind: Annotated[Literal["SchedulerConfiguration"], key("Kind of this document.")] = KIND
    kubeconfig: Annotated[str, key("File that says how the API server is reached; empty: as a pod does.")] = ""
    instance: Annotated[str, key("Name of this replica in events; empty: the pod's, or the machine's.")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], key("The least that is logged.")] = "info"
    placed_events: Annotated[bool, key("Tell of every placed pod by an event, as many as there is room for.")] = True
    schedulers: Annotated[
        tuple[str, ...],
        key("Schedulers that pods with shares may name: kube-scheduler's profiles. Of others their pods are told."),
    ] = (names.SCHEDULER,)
    extender: ExtenderSettings = ExtenderSettings()
    leader: Annotated[
        Literal["follow", "always"],
        key("When these books count. follow: while that kube-scheduler leads; always: it runs without election."),
    ] = "follow"
    election: ElectionSettings = ElectionSettings()
    books: BooksSettings = BooksSettings()
    ask: AskSettings = AskSettings()
    placement: PlacementSettings = PlacementSettings()
    metrics: MetricsSettings = MetricsSettings()


LAYOUT: Final = Layout(
    settings=Settings,
    program="partage scheduler",
    about="Places pods on shares of cards: the extender of kube-scheduler, and its books.",
    prefix="PARTAGE_SCHEDULER_",
    file=FILE,
    page="docs/reference/scheduler.md",
)


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that file, variables and flags make; raises UsageError."""
    settings = LAYOUT.load(argv, environ)
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    """Raise UsageError where keys contradict each other."""
    extender, tls = settings.extender, settings.extender.tls
    given = [tls.certificate, tls.private_key, tls.client_authority]
    if any(given) and not all(given):
        limit = "certificate, privateKey and clientAuthority belong together"
        raise UsageError("extender.tls", "not complete", limit, LAYOUT.step)
    if not any(given) and not is_loopback(extender.address):
        limit = "whoever reaches this port can bind pods: beyond the loopback interface it wants certificates"
        raise UsageError("extender.address", extender.address, limit, "set extender.tls, or 127.0.0.1")
    words = settings.placement.card_policies
    if not words or len(set(words)) != len(words):
        accepted = f"accepted: {', '.join(get_args(CardPolicy))}, one or several, each once"
        raise UsageError("placement.cardPolicies", f"'{','.join(words)}'", accepted, LAYOUT.step)
    lease_of(settings)


def is_loopback(address: str) -> bool:
    """Whether only this machine (in a pod: this pod) reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def lease_of(settings: Settings) -> tuple[str, str]:
    """Return the Lease's namespace and name; raises UsageError."""
    namespace, _, name = settings.election.lease.partition("/")
    if not (namespace and name) or "/" in name:
        raise UsageError("election.lease", f"'{settings.election.lease}'", "accepted: namespace/name", LAYOUT.step)
    return namespace, name


def ask_options(settings: Settings) -> AskOptions:
    """Return how pods are read."""
    return settings.ask.options()
