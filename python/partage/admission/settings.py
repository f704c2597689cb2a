"""What an administrator can decide about the webhook: every key of its file, with its default.

The structures below are the only list of keys: the file's layout, the flags, the variables and the reference page all
come from them (`partage.configuration`). What can go wrong: UsageError names the key, the value and what is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from partage.admission.options import NCCL_SECONDS, WRITER, AdmissionOptions
from partage.configuration import Layout, Section, key
from partage.devices.ask_settings import AskSettings
from partage.model import UsageError, names
from partage.model.names import PORT_METRICS, PORT_WEBHOOK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_VERSION: Final = "config.partage.io/v1alpha1"
KIND: Final = "WebhookConfiguration"
FILE: Final = "/etc/partage/webhook.yaml"
WEBHOOK: Final = "partage-webhook"
SECRET: Final = "partage-webhook-certificates"  # noqa: S105 -- its name


class ServerSettings(Section, frozen=True, kw_only=True):
    """Where the API server asks."""

    address: Annotated[str, key("Address to listen on; empty: all, of IPv4 and IPv6.")] = names.EVERY_ADDRESS
    port: Annotated[int, key("Port to listen on.", ge=1, le=65535)] = PORT_WEBHOOK
    drain_seconds: Annotated[
        float, key("How long questions are still answered after the end was asked for.", ge=0, le=300)
    ] = 5.0


class TlsSettings(Section, frozen=True, kw_only=True):
    """Certificates: made and renewed here, unless files are named."""

    certificate: Annotated[str, key("The server's certificate and what signed it, PEM; empty: made here.")] = ""
    private_key: Annotated[str, key("Its private key, PEM.")] = ""
    namespace: Annotated[str, key("Namespace of Secret and Service.")] = names.NAMESPACE
    secret: Annotated[str, key("Secret in which those made here are kept.")] = SECRET
    service: Annotated[str, key("Service by which the API server asks; its names stand in the certificate.")] = WEBHOOK
    configurations: Annotated[
        tuple[str, ...], key("Webhook configurations, mutating and validating, that are to trust it.")
    ] = (WEBHOOK,)
    leaf_hours: Annotated[float, key("Life of a certificate made here; it is renewed at two thirds.", gt=0)] = 24.0 * 90
    authority_hours: Annotated[float, key("Life of what signs it; renewed at two thirds.", gt=0)] = 24.0 * 3650
    check_seconds: Annotated[
        float, key("How often Secret, files and configurations are looked at.", gt=0, le=86400)
    ] = 60.0


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Figures, health and readiness over HTTP."""

    address: Annotated[str, key("Address to listen on; empty: all, of IPv4 and IPv6.")] = names.EVERY_ADDRESS
    port: Annotated[int, key("Port to listen on.", ge=1, le=65535)] = PORT_METRICS


class Settings(Section, frozen=True, kw_only=True):
    """All of it."""

    api_version: Annotated[Literal["config.partage.io/v1alpha1"], key("Version of this document.")] = API_VERSION
    kind: Annotated[Literal["WebhookConfiguration"], key("Kind of this document.")] = KIND
    kubeconfig: Annotated[str, key("File that says how the API server is reached; empty: as a pod does.")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], key("The least that is logged.", live=True)] = (
        "info"
    )
    scheduler: Annotated[str, key("Scheduler that pods with shares get.", live=True, min_length=1)] = names.SCHEDULER
    also_known_as: Annotated[
        tuple[str, ...],
        key("Further names of it, as the scheduler's own `schedulers`; a pod that says one keeps it.", live=True),
    ] = ()
    take_over_default: Annotated[
        bool, key("Whether pods that name no scheduler, or `default-scheduler`, get it too.", live=True)
    ] = True
    writers: Annotated[tuple[str, ...], key("Users that may write grants.", live=True)] = (WRITER,)
    runtime_class: Annotated[
        str, key("Runtime class of pods with NVIDIA shares that name none; empty: none.", live=True)
    ] = ""
    priority_classes: Annotated[
        bool,
        key(
            "Whether pods with `nvidia.com/priority` get the class `p1-onlineserving` (0) or `p2-batchtraining` (1).",
            live=True,
        ),
    ] = False
    hide_cards: Annotated[
        bool,
        key(
            "Whether containers without a share get `NVIDIA_VISIBLE_DEVICES=none`, whatever they name by hand.",
            live=True,
        ),
    ] = True
    nccl_seconds: Annotated[
        int,
        key(
            "After how long a part of a distributed job gives up waiting for the others; 0: up to it.", live=True, ge=0
        ),
    ] = NCCL_SECONDS
    seccomp: Annotated[
        bool, key("Whether pods with shares that name no seccomp profile get `RuntimeDefault`.", live=True)
    ] = True
    ask: AskSettings = AskSettings()
    server: ServerSettings = ServerSettings()
    tls: TlsSettings = TlsSettings()
    metrics: MetricsSettings = MetricsSettings()

    def options(self) -> AdmissionOptions:
        """Return what `decide` takes of it."""
        return AdmissionOptions(
            ask=self.ask.options(),
            scheduler=self.scheduler,
            also_known_as=frozenset(self.also_known_as),
            take_over_default=self.take_over_default,
            runtime_class=self.runtime_class,
            priority_classes=self.priority_classes,
            hide_cards=self.hide_cards,
            writers=frozenset(self.writers),
            nccl_seconds=self.nccl_seconds,
            seccomp=self.seccomp,
        )


LAYOUT: Final = Layout(
    settings=Settings,
    program="partage webhook",
    about="Admits pods that ask for shares: fills in defaults, refuses what has no meaning, guards grants.",
    prefix="PARTAGE_WEBHOOK_",
    file=FILE,
    page="docs/reference/webhook.md",
)


def load(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return the settings that file, variables and flags make; raises UsageError."""
    settings = LAYOUT.load(argv, environ)
    if bool(settings.tls.certificate) != bool(settings.tls.private_key):
        raise UsageError("tls", "not complete", "certificate and privateKey belong together", LAYOUT.step)
    return settings
