"""Whose request is it? From the ids in `PreStartContainer` to the pods and containers whose hand-overs they are.

Kubelet's checkpoint says it (UID and container of every answer of ours); PodResources is asked about the pod that it
names, and must not say otherwise. Where the checkpoint cannot be read, or has a layout that nobody knows, PodResources
and what `Allocate` minted for just these ids must agree on one container, else the request is refused. Nothing is ever
guessed from what is pending. Kubelet writes the file from several threads, and an older one may be what stays: with
each refusal by that file it is made to write it again, so that the next answer is from its latest.

A static pod is in the checkpoint by a UID of kubelet's own, and its mirror at the API server has another; nobody binds
it, so it has no grant, as `check_bound` says. What can go wrong is Refused; kubelet asks again.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import names
from partage_plugin.handover.desk import Claim
from partage_plugin.kubelet.checkpoint import CheckpointError
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from partage_plugin.kubelet.checkpoint import CheckpointFile, Entry
    from partage_plugin.kubelet.minted import Minted
    from partage_plugin.kubelet.podresources import Holder, PodResources
    from partage_plugin.ports import Pod, Pods

UNKNOWN: Final = "OwnerUnknown"
AMBIGUOUS: Final = "OwnerAmbiguous"
CONTRADICTED: Final = "OwnerContradicted"
POD_UNKNOWN: Final = "PodUnknown"
STATIC: Final = "PodStatic"
_OF_FILES: Final = frozenset({UNKNOWN, AMBIGUOUS, CONTRADICTED})  # what a later checkpoint may put right
POD_PATIENCE_S: Final = 5.0  # a refusal costs kubelet's back-off, which begins at 10 s
_OF_KUBELET: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)  # a UID made of a manifest; the API server's have dashes

log = structlog.get_logger("partage.owners")


class Owners:
    """Finds the claims behind a request. Holds nothing between two of them."""

    def __init__(self, checkpoint: CheckpointFile, resources: PodResources, minted: Minted, pods: Pods) -> None:
        self._checkpoint = checkpoint
        self._resources = resources
        self._minted = minted
        self._pods = pods
        self.write_again: Callable[[], None] = lambda: None  # makes kubelet write its checkpoint anew

    async def of(self, ids: Sequence[str]) -> list[Claim]:
        """Return every claim that holds one of these ids; raises Refused. Never an empty list."""
        try:
            return await self._of(frozenset(ids), f"seats {', '.join(sorted(ids))}")
        except Refused as refusal:
            if refusal.reason in _OF_FILES:
                self.write_again()
            raise

    async def _of(self, ids: frozenset[str], subject: str) -> list[Claim]:
        try:
            entries = self._checkpoint.read().holding(ids)
        except CheckpointError as error:
            log.warning("kubelet's checkpoint cannot be read; PodResources decides alone", error=str(error))
            return [await self._by_resources(ids, await self._resources.holding(ids), subject, error)]
        if not entries:
            limit, step = "it is written before a container starts", "kubelet asks again; see its log if this stays"
            raise Refused(UNKNOWN, (subject, "in no entry of kubelet's checkpoint", limit, step))
        claims = [await self._claim(entry, subject) for entry in entries]
        written = {
            (claim.pod.namespace, claim.pod.name, claim.container): entry.ids
            for claim, entry in zip(claims, entries, strict=True)
        }
        answers = [self._resources.of_pod(pod.namespace, pod.name) for pod in pods_of(claims)]
        for holders in await asyncio.gather(*answers):
            self._cross_check(written, holders or (), ids, subject)
        return claims

    async def _claim(self, entry: Entry, subject: str) -> Claim:
        whose = f"container {entry.container!r} of pod {entry.pod_uid}"
        if entry.name is None:
            limit = "an answer that names a hand-over is needed"
            step = "delete the pod: another device plugin answered for it"
            raise Refused(UNKNOWN, (subject, f"given to {whose} by somebody else", limit, step))
        pod = self._pods.get(entry.pod_uid) or self._mirror(entry.pod_uid)
        if pod is None and _OF_KUBELET.fullmatch(entry.pod_uid) is not None:
            raise _static(whose)
        pod = pod or await self._pods.wait_for(entry.pod_uid, POD_PATIENCE_S) or self._mirror(entry.pod_uid)
        if pod is None:
            limit = f"known from the API server within {POD_PATIENCE_S:g} s"
            raise Refused(POD_UNKNOWN, (whose, "not seen", limit, "is the API server reachable? kubelet asks again"))
        return Claim(entry.name, pod, entry.container, len(entry.ids), files=entry.files)

    def _mirror(self, uid: str) -> Pod | None:
        """Return what the API server shows of the static pod that kubelet knows by this UID; None where it is none."""
        return next((pod for pod in self._pods.all() if pod.mirrors == uid), None)

    @staticmethod
    def _cross_check(
        written: Mapping[tuple[str, str, str], frozenset[str]],
        holders: Iterable[Holder],
        ids: frozenset[str],
        subject: str,
    ) -> None:
        """Refuse where PodResources gives a container other ids, or just these to one that is not in the checkpoint.

        A container that it leaves out, as it does ordinary init containers, says nothing.
        """
        for holder in holders:
            known = written.get((holder.namespace, holder.pod, holder.container))
            if holder.ids == known or (known is None and holder.ids != ids):
                continue
            has = ", ".join(sorted(holder.ids))
            value = f"PodResources says {holder.namespace}/{holder.pod}, container {holder.container!r}, has {has}"
            says = "; ".join(
                f"{'/'.join(owner)} has {', '.join(sorted(its))}" for owner, its in sorted(written.items())
            )
            step = "kubelet asks again; see its log if this stays"
            raise Refused(CONTRADICTED, (subject, value, f"the checkpoint says {says}", step))

    async def _by_resources(
        self, ids: frozenset[str], listed: Iterable[Holder] | None, subject: str, error: CheckpointError
    ) -> Claim:
        holders = [holder for holder in listed or () if holder.ids == ids]
        minted = self._minted.for_ids(ids)
        if len(holders) != 1 or len(minted) != 1:
            value = f"{len(holders)} containers, {len(minted)} hand-overs for these ids"
            step = f"kubelet's checkpoint cannot be used ({error.value}): update Partage, or create the pod again"
            raise Refused(AMBIGUOUS, (subject, value, "exactly one of each is needed to tell whose it is", step))
        holder, name = holders[0], minted[0]
        return Claim(name, await self._only_one_of_name(holder, name), holder.container, len(ids))

    async def _only_one_of_name(self, holder: Holder, name: str) -> Pod:
        """Return the pod of a name, where no other one had it since the hand-over was minted: a name is no UID."""
        whose = f"pod {holder.namespace}/{holder.pod}"
        pod = await self._pods.find(holder.namespace, holder.pod)
        if pod is None or await self._pods.wait_for(pod.uid, POD_PATIENCE_S) is None:  # then all before it is known too
            raise Refused(POD_UNKNOWN, (whose, "not known to the API server", "needed for its grant", "create it anew"))
        others = set(self._pods.namesakes(holder.namespace, holder.pod, self._minted.age(name))) - {pod.uid}
        if others:
            value = f"{len(others) + 1} pods had this name since kubelet asked: {', '.join(sorted({*others, pod.uid}))}"
            limit = "without kubelet's checkpoint it cannot be told which of them starts"
            raise Refused(AMBIGUOUS, (whose, value, limit, "delete the pod and let its controller make a new one"))
        return pod


def check_bound(claim: Claim) -> None:
    """Refuse a static pod's container: also in whole-card safe mode, since its mirror comes and goes beside it."""
    if claim.pod.mirrors:
        raise _static(f"container {claim.container!r} of {claim.pod.full_name}")


def _static(whose: str) -> Refused:
    value = "a static pod, which kubelet has from a manifest of its own"
    limit = f"a share comes with the binding by {names.SCHEDULER}, and nobody binds a static pod: it can have no grant"
    return Refused(STATIC, (whose, value, limit, "create it at the API server, as of a DaemonSet, without nodeName"))


def pods_of(claims: Iterable[Claim]) -> list[Pod]:
    """Return the pods behind claims, each once."""
    return list({claim.pod.uid: claim.pod for claim in claims}.values())
