"""Kubernetes for every other room: requests, an up-to-date copy of objects, events, conditions.

client.py: requests with bounded retries, every failure a KubeError; informer.py: list and watch, what there is by UID
and by name, and what changes; config.py: kubeconfig, or the pod's own service account.
"""

from partage.kube.backoff import Backoff
from partage.kube.client import ALL_NS, Client, Listing, PatchType, Retry, WatchEvent
from partage.kube.clock import Clock, SystemClock, within
from partage.kube.config import load_config
from partage.kube.informer import Informer, Timing
from partage.kube.store import Change, Key, key_of

__all__ = [
    "ALL_NS",
    "Backoff",
    "Change",
    "Client",
    "Clock",
    "Informer",
    "Key",
    "Listing",
    "PatchType",
    "Retry",
    "SystemClock",
    "Timing",
    "WatchEvent",
    "key_of",
    "load_config",
    "within",
]
