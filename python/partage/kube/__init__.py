"""Kubernetes for every other room: requests, an up-to-date copy of objects, events, conditions.

client.py: requests with bounded retries, every failure a KubeError; informer.py: list and watch, what there is by UID
and by name, and what changes; config.py: kubeconfig, or the pod's own service account; events.py and conditions.py:
what people see of it on their pods and nodes.
"""

from partage.kube.backoff import Backoff
from partage.kube.bucket import Bucket
from partage.kube.client import ALL_NS, Client, Listing, PatchType, Retry, WatchEvent
from partage.kube.clock import Clock, SystemClock, within
from partage.kube.conditions import Condition, condition_of, mark_node, set_condition, set_conditions
from partage.kube.config import load_config
from partage.kube.events import EventRecorder, Rate, node_reference, pod_reference
from partage.kube.informer import Informer, Timing
from partage.kube.store import Change, Key, key_of

__all__ = [
    "ALL_NS",
    "Backoff",
    "Bucket",
    "Change",
    "Client",
    "Clock",
    "Condition",
    "EventRecorder",
    "Informer",
    "Key",
    "Listing",
    "PatchType",
    "Rate",
    "Retry",
    "SystemClock",
    "Timing",
    "WatchEvent",
    "condition_of",
    "key_of",
    "load_config",
    "mark_node",
    "node_reference",
    "pod_reference",
    "set_condition",
    "set_conditions",
    "within",
]
