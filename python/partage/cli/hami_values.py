"""HAMi's Helm values, told in the words of our chart: what each key becomes, or why it becomes nothing.

`translate` is a pure function of the decoded file; the table above it is the only list of keys. Called by `partage
chart values`. What can go wrong: a value that is not of the kind that HAMi's chart has there (UsageError names key and
value). A key that has no counterpart is never dropped in silence: it is a note, with what to do instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from partage.model import UsageError, names
from partage.model.ask import CardPolicy, NodePolicy
from partage.model.pod import DEFAULT_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HAMI_SCHEDULER: Final = "hami-scheduler"
_NOT_A_KEY: Final = object()
_CORRECT: Final = "correct it in HAMi's values"


@dataclass
class Translated:
    """`values` for our chart, and `notes`: what could not be said in them, one line a key."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        """Set a value by its path: `agent.config.nvidia.seats`."""
        place = self.values
        *above, last = path.split(".")
        for part in above:
            place = place.setdefault(part, {})
        if isinstance(value, list) and isinstance(place.get(last), list):
            value = [*place[last], *(one for one in value if one not in place[last])]
        place[last] = value

    def note(self, key: str, text: str) -> None:
        """Say why a key becomes nothing."""
        self.notes.append(f"{key}: {text}")


def to(*paths: str) -> Callable[[Translated, str, Any], None]:
    """Return the rule of a key that means the same under another name."""

    def rule(made: Translated, _: str, value: Any) -> None:
        for path in paths:
            if value not in ("", None, [], {}):
                made.put(path, value)

    return rule


def nothing(text: str, *, unless: Any = _NOT_A_KEY) -> Callable[[Translated, str, Any], None]:
    """Return the rule of a key without a counterpart; nothing is said where it has the value `unless`."""

    def rule(made: Translated, key: str, value: Any) -> None:
        if value not in ("", None, [], {}, unless):
            made.note(key, text)

    return rule


def _scaling(made: Translated, key: str, value: Any) -> None:
    number = 1.0 if value in ("", None) else _number(key, value)
    if number <= 0:
        raise UsageError(key, repr(value), "a number above 0", _CORRECT)
    if number < 1:
        made.note(key, "all of a card's memory is shared; agent.config.nvidia.waterLine.buffer keeps some of it free")
    if number > 1:
        made.put("agent.config.memoryScaling", number)
        made.put("agent.config.oversubscription", "allowed")


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError(key, repr(value), "a number", _CORRECT)
    try:
        found = float(value)
    except (ValueError, OverflowError) as error:
        raise UsageError(key, repr(value), "a number", _CORRECT) from error
    if not math.isfinite(found):
        raise UsageError(key, repr(value), "a number", _CORRECT)
    return int(found) if found == int(found) else found


def _whole(key: str, value: Any, least: int) -> int:
    found = _number(key, value)
    if found != int(found) or found < least:
        raise UsageError(key, repr(value), f"a whole number from {least}", _CORRECT)
    return int(found)


def _seats(made: Translated, key: str, value: Any) -> None:
    if value not in ("", None):
        made.put("agent.config.nvidia.seats", _whole(key, value, 1))


def _memory(made: Translated, key: str, value: Any) -> None:
    if value:
        made.put("agent.config.nvidia.preconfiguredMemory", f"{_whole(key, value, 0)}Mi")


def _scheduler_name(made: Translated, key: str, value: Any) -> None:
    if value and not isinstance(value, str):
        raise UsageError(key, repr(value), "a scheduler's name", _CORRECT)
    if value == DEFAULT_SCHEDULER:
        made.note(key, "that one stays the cluster's own; pods with shares that name it become ours at admission")
    elif value and value != names.SCHEDULER:
        made.put("scheduler.alsoKnownAs", [value])


def _overwrite_env(made: Translated, key: str, value: Any) -> None:
    if value is False:
        made.note(
            key, "containers without a share are told of no card; webhook.config.hideCards: false is the contrary"
        )


def _failure_policy(made: Translated, key: str, value: Any) -> None:
    if value not in ("", None, "Ignore"):
        made.note(key, "always Ignore: a pod with shares that slips past has no grant, and the agent does not start it")


def _namespaces_left_out(made: Translated, key: str, value: Any) -> None:
    if value and not isinstance(value, list):
        raise UsageError(key, repr(value), "a list of namespaces", _CORRECT)
    if value:
        made.put(
            "webhook.namespaces",
            [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(value)}],
        )


def _labels(made: Translated, key: str, value: Any) -> None:
    if value and not isinstance(value, dict):
        raise UsageError(key, repr(value), "labels", _CORRECT)
    found = [{"key": key, "operator": "In", "values": [one]} for key, one in (value or {}).items()]
    if found:
        made.put("webhook.namespaces", found)


def _core_policy(made: Translated, key: str, value: Any) -> None:
    if value in ("force", "default", "disable"):
        made.put("ask.corePolicy", value)
    elif value:
        raise UsageError(key, repr(value), "accepted: default, force, disable", _CORRECT)


def _disable_core_limit(made: Translated, key: str, value: Any) -> None:
    if str(value).lower() == "true":
        made.note(key, "has no effect in HAMi; to hold no cores set ask.corePolicy: disable")


def _node_policy(made: Translated, key: str, value: Any) -> None:
    words = _policies(made, key, value, get_args(NodePolicy))
    if words:
        made.put("scheduler.config.placement.nodePolicy", words[0])


def _card_policies(made: Translated, key: str, value: Any) -> None:
    words = _policies(made, key, value, get_args(CardPolicy))
    if words:
        made.put("scheduler.config.placement.cardPolicies", words)


def _policies(made: Translated, key: str, value: Any, accepted: tuple[str, ...]) -> list[str]:
    """Return the words of a policy, several with commas; none where one is not known, which is noted."""
    words = [word.strip() for word in str(value or "").split(",")]
    if all(word in accepted for word in words):
        return words
    if value:
        made.note(key, f"'{value}' is no policy, ours stays; accepted: {', '.join(accepted)}")
    return []


def _mig(made: Translated, key: str, value: Any) -> None:
    if value not in ("", None, "none"):
        made.note(key, "cards in MIG mode are left to NVIDIA's own device plugin in this version")


def _node_config(made: Translated, key: str, value: Any) -> None:
    """Take over HAMi's node configuration, a JSON text."""
    if not value:
        return
    try:
        entries = msgspec.json.decode(value)["nodeconfig"] if isinstance(value, str) else value["nodeconfig"]
        nodes = [_node(made, f"{key}[{number}]", entry) for number, entry in enumerate(entries)]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        step = "correct it, or leave it out"
        raise UsageError(key, "cannot be read", 'JSON as {"nodeconfig": [{"name": ...}]}', step) from error
    found = [node for node in nodes if len(node) > 1]
    if found:
        made.put("agent.config.nodes", found)


def _node(made: Translated, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = {"name": entry["name"]}
    one = Translated()
    for name, value in entry.items():
        rule = _NODE_KEYS.get(name)
        if rule is None:
            made.note(f"{key}.{name}", "is not known")
        else:
            rule(one, f"{key}.{name}", value)
    made.notes += one.notes
    config: dict[str, Any] = one.values.get("agent", {}).get("config", {})
    return node | config


def _filter_devices(made: Translated, key: str, value: Any) -> None:
    if value and not isinstance(value, dict):
        raise UsageError(key, repr(value), "uuid and index, lists", _CORRECT)
    for ours, theirs in (("uuids", "uuid"), ("indexes", "index")):
        if value and value.get(theirs):
            made.put(f"agent.config.nvidia.leaveOut.{ours}", list(value[theirs]))


def _mode(made: Translated, key: str, value: Any) -> None:
    if value not in ("", None, "hami-core"):
        made.note(key, f"{value} cards are not shared by this version; they are left out where they are in that mode")


_ALWAYS: Final = nothing("is so always")
_OWN_PORTS: Final = nothing("figures are served on port 9445 of each pod, without a Service of type NodePort")
_CDI: Final = nothing("containers get their cards by CDI always; there is nothing to choose", unless="envvar")
_NEVER_RENAMED: Final = "resources keep the names that vendors gave them; pods that use another have to be changed"
_IMAGES: Final = nothing("images are our own: image.registry, image.tag")

_NODE_KEYS: Final[dict[str, Any]] = {
    "name": lambda *_: None,
    "devicesplitcount": _seats,
    "devicememoryscaling": _scaling,
    "devicecorescaling": nothing("no more than all of a card's time is promised", unless=1),
    "preconfigureddevicememory": _memory,
    "enablenumatopology": to("agent.config.nvidia.numaTopology"),
    "filterdevices": _filter_devices,
    "operatingmode": _mode,
    "migstrategy": _mig,
    "libcudaloglevel": nothing("the library writes no log by default"),
    "enablegetpreferredallocation": lambda *_: None,
}

#: HAMi's keys, of its chart 2.7 to 2.10. A key that ends in `.*` stands for all below it.
KEYS: Final[dict[str, Any]] = {
    "schedulerName": _scheduler_name,
    "global.imagePullSecrets": to("imagePullSecrets"),
    "global.imageTag": _IMAGES,
    "global.imageRegistry": _IMAGES,
    "global.gpuHookPath": nothing("the library is installed in agent.config.places.library", unless="/usr/local"),
    "global.labels": to("labels"),
    "global.annotations": nothing("set scheduler.podAnnotations, webhook.podAnnotations, agent.podAnnotations"),
    "global.managedNodeSelectorEnable": nothing("has no effect in HAMi", unless=False),
    "global.managedNodeSelector.*": lambda *_: None,
    "imagePullSecrets": to("imagePullSecrets"),
    "podSecurityPolicy.*": nothing("Kubernetes has no pod security policies any more"),
    "resourceName": nothing(_NEVER_RENAMED, unless="nvidia.com/gpu"),
    "resourceMem": nothing(_NEVER_RENAMED, unless="nvidia.com/gpumem"),
    "resourceMemPercentage": nothing(_NEVER_RENAMED, unless="nvidia.com/gpumem-percentage"),
    "resourceCores": nothing(_NEVER_RENAMED, unless="nvidia.com/gpucores"),
    "resourcePriority": nothing(_NEVER_RENAMED, unless="nvidia.com/priority"),
    "scheduler.replicas": to("scheduler.replicas", "webhook.replicas"),
    "scheduler.leaderElect": nothing("replicas always agree on one leader", unless=True),
    "scheduler.defaultSchedulerPolicy.nodeSchedulerPolicy": _node_policy,
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": _card_policies,
    "scheduler.forceOverwriteDefaultScheduler": to("webhook.config.takeOverDefault"),
    "scheduler.overwriteEnv": _overwrite_env,
    "scheduler.nodeLabelSelector": nothing("nodes without our agent have no cards, and cost nothing"),
    "scheduler.nodeLockExpire": nothing("has no effect in HAMi, and no node is locked here", unless="5m"),
    "scheduler.metricsBindAddress": _OWN_PORTS,
    "scheduler.metricsBindPort": _OWN_PORTS,
    "scheduler.livenessProbe": lambda *_: None,
    "scheduler.serviceMonitor.enable": to("metrics.podMonitors"),
    "scheduler.kubeScheduler.enabled": nothing("there is always one, of its own", unless=True),
    "scheduler.kubeScheduler.image.repository": to("scheduler.kubeScheduler.image.repository"),
    "scheduler.kubeScheduler.image.tag": to("scheduler.kubeScheduler.image.tag"),
    "scheduler.kubeScheduler.resources": to("scheduler.kubeScheduler.resources"),
    "scheduler.kubeScheduler.*": nothing("its flags are the chart's own"),
    "scheduler.extender.resources": to("scheduler.resources"),
    "scheduler.extender.*": nothing("its flags are scheduler.config"),
    "scheduler.podAnnotations": to("scheduler.podAnnotations"),
    "scheduler.nodeSelector": to("scheduler.nodeSelector", "webhook.nodeSelector"),
    "scheduler.tolerations": to("scheduler.tolerations", "webhook.tolerations"),
    "scheduler.admissionWebhook.enabled": to("webhook.enabled"),
    "scheduler.admissionWebhook.failurePolicy": _failure_policy,
    "scheduler.admissionWebhook.whitelistNamespaces": _namespaces_left_out,
    "scheduler.admissionWebhook.namespaceSelector.matchLabels": _labels,
    "scheduler.admissionWebhook.namespaceSelector.matchExpressions": to("webhook.namespaces"),
    "scheduler.admissionWebhook.manageNamespaceSelector": lambda *_: None,
    "scheduler.admissionWebhook.reinvocationPolicy": nothing("is IfNeeded here", unless="Never"),
    "scheduler.admissionWebhook.objectSelector.*": nothing("pods are left out by their namespaces only"),
    "scheduler.admissionWebhook.customURL.*": nothing("set webhook.service.externalName"),
    "scheduler.certManager.enabled": nothing("the webhook makes and renews its own certificates", unless=False),
    "scheduler.patch.*": lambda *_: None,
    "scheduler.service.*": _OWN_PORTS,
    "devicePlugin.enabled": to("agent.enabled"),
    "devicePlugin.deviceSplitCount": _seats,
    "devicePlugin.deviceMemoryScaling": _scaling,
    "devicePlugin.deviceCoreScaling": nothing("no more than all of a card's time is promised", unless=1),
    "devicePlugin.enableNumaTopology": to("agent.config.nvidia.numaTopology"),
    "devicePlugin.preConfiguredDeviceMemory": _memory,
    "devicePlugin.nodeConfiguration.config": _node_config,
    "devicePlugin.nodeConfiguration.externalConfigName": nothing("write its entries into agent.config.nodes"),
    "devicePlugin.runtimeClassName": to("agent.runtimeClassName", "webhook.config.runtimeClass"),
    "devicePlugin.createRuntimeClass": nothing("make the class with NVIDIA's container toolkit", unless=False),
    "devicePlugin.migStrategy": _mig,
    "devicePlugin.disablecorelimit": _disable_core_limit,
    "devicePlugin.passDeviceSpecsEnabled": nothing("containers get their devices by CDI always", unless=False),
    "devicePlugin.deviceListStrategy": _CDI,
    "devicePlugin.nvidiaDriverRoot": to("agent.config.nvidia.driverRoot"),
    "devicePlugin.nvidiaHookPath": nothing("NVIDIA's hook is not called: cards come by CDI"),
    "devicePlugin.gdrcopyEnabled": to("agent.config.nvidia.gdrcopy"),
    "devicePlugin.gdsEnabled": to("agent.config.nvidia.gds"),
    "devicePlugin.mofedEnabled": to("agent.config.nvidia.mofed"),
    "devicePlugin.gpuOperatorToolkitReady.*": nothing("the agent waits for its runtime class by itself"),
    "devicePlugin.hostPID": nothing("the agent always sees the host's processes", unless=True),
    "devicePlugin.hostNetwork": to("agent.hostNetwork"),
    "devicePlugin.nvidiaNodeSelector": to("agent.nodeSelector"),
    "devicePlugin.nodeSelector": to("agent.nodeSelector"),
    "devicePlugin.tolerations": to("agent.tolerations"),
    "devicePlugin.podAnnotations": to("agent.podAnnotations"),
    "devicePlugin.resources": nothing("the agent needs another amount: agent.resources"),
    "devicePlugin.service.*": _OWN_PORTS,
    "devicePlugin.monitor.*": nothing("the agent is its own monitor: agent.config.metrics"),
    "devicePlugin.image.*": _IMAGES,
    "devicePlugin.libPath": nothing("the library is installed in agent.config.places.library"),
    "devicePlugin.pluginPath": nothing("is agent.config.places.plugins"),
    "devicePlugin.extraArgs": nothing("flags of ours are keys of agent.config"),
    "devicePlugin.disableHealthChecks": nothing("set agent.config.nvidia.health.watchXids: false"),
    "devices.nvidia.gpuCorePolicy": _core_policy,
    "devices.nvidia.libCudaLogLevel": nothing("the library writes no log by default"),
    "devices.*": nothing("nodes of other vendors are not served by this version"),
    "device-config.*": nothing(
        "there is one document for each program: agent.config, scheduler.config, webhook.config"
    ),
    "mockDevicePlugin.enabled": nothing("set agent.simulated.profile", unless=False),
    "mockDevicePlugin.*": lambda *_: None,
    "prometheus.enabled": to("metrics.podMonitors"),
    "legacyMetrics": to("agent.config.metrics.hamiNames", "scheduler.config.metrics.hamiNames"),
    "dra.enabled": nothing("dynamic resource allocation is not served by this version", unless=False),
}
#: Names of other vendors' resources, which HAMi's chart can rename.
_OTHER_NAMES: Final = ("mlu", "dcu", "metax", "enflame", "kunlun", "vastai", "biren", "iluvatar", "mthreads", "amd")


def translate(document: Mapping[str, Any]) -> Translated:
    """Return our values for HAMi's; raises UsageError."""
    made = Translated()
    for key, value in _leaves(document):
        rule = KEYS.get(key) or _below(key)
        if rule is not None:
            rule(made, key, value)
        elif key.startswith(_OTHER_NAMES):
            nothing(_NEVER_RENAMED, unless=value if "/" in str(value) else _NOT_A_KEY)(made, key, value)
        else:
            made.note(key, "is not known")
    if "schedulerName" not in document:
        _scheduler_name(made, "schedulerName", HAMI_SCHEDULER)  # HAMi's default, which pods may name
    return made


def _leaves(document: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key that a rule stands for, or that has no mapping below it."""
    for name, value in document.items():
        here = f"{path}{name}"
        if here in KEYS or not isinstance(value, dict) or not value:
            yield here, value
        else:
            yield from _leaves(value, f"{here}.")


def _below(key: str) -> Any:
    """Return the rule of the nearest key above that stands for all below it."""
    while "." in key:
        key = key.rpartition(".")[0]
        if f"{key}.*" in KEYS:
            return KEYS[f"{key}.*"]
    return None
