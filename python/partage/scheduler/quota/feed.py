"""Keeps the quota book up to date from what the API says, and answers the scheduler's questions about a pod.

The scheduler's watch hands on every change of pods and of quotas; the extender asks `narrowed` before it looks for a
node, and tells `hold` and `release` what the books reserve. Pods of namespaces without a quota of ours cost nothing.
What can go wrong: a pod has no room in a quota (QuotaRefused, with the quota, the key, what is used and allowed); a
quota names what nobody counts, which `warn` tells on the quota itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from partage.model import GrantError, PartageError, ShareRefused, names
from partage.model.grant import parse_grant
from partage.model.hami_twin import ANNOTATION as TWIN
from partage.model.hami_twin import parse_twin
from partage.scheduler.quota.book import CODE, Exceeded, QuotaBook, QuotaPod
from partage.scheduler.quota.charge import Charge, asked_charge, granted_charge, placed_charge
from partage.scheduler.quota.limits import Limit, read_limit
from partage.scheduler.quota.scope import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from lightkube.resources.core_v1 import ResourceQuota

    from partage.kube import Change
    from partage.model.ask import PodAsk
    from partage.model.grant import Grant
    from partage.model.pod import PodView
    from partage.scheduler.answers import Placement
    from partage.scheduler.quota.charge import CardSize
    from partage.scheduler.views import WatchedPod

UNSEEN_S: Final = 300.0  # then a pod that was not shown is gone: it came and went while the watch was broken
STEP: Final = "ask for less, end other pods of the namespace, or have the quota raised"

log = structlog.get_logger("partage.scheduler")


class QuotaRefused(ShareRefused):
    """A pod has no room in a quota of its namespace; `exceeded` has the numbers."""

    code = CODE

    def __init__(self, subject: str, exceeded: Exceeded) -> None:
        self.exceeded = exceeded
        value = f"{exceeded.asked} of {exceeded.key} asked, {exceeded.used} used"
        super().__init__(subject, value, f"resourcequota {exceeded.quota} allows {exceeded.hard}", STEP)

    @property
    def reason(self) -> str:
        """What is wrong, without whose and what to do."""
        return f"{self.value}; {self.limit}"


class QuotaFeed:
    """The way to the book; owned by one event loop.

    `read`: what a pod asks for, None for nothing of ours or what cannot be read; `pods`: all that the watch knows;
    `card`: a node's card by UUID; `sizes`: the physical memory of the cards there are; `warn`: tells on a quota.
    """

    def __init__(  # noqa: PLR0913 -- each is one question to somebody else, all are named
        self,
        book: QuotaBook,
        *,
        read: Callable[[PodView], PodAsk | None],
        pods: Callable[[], Iterable[WatchedPod]],
        card: Callable[[str, str], CardSize | None],
        sizes: Callable[[], Iterable[int]],
        warn: Callable[[ResourceQuota, str], None] = lambda _quota, _text: None,
    ) -> None:
        self.book = book
        self._read = read
        self._pods = pods
        self._card = card
        self._sizes = sizes
        self._warn = warn
        self._counted: set[str] = set()  # namespaces that have quotas of ours
        self._ending: dict[str, datetime] = {}  # placed pods that were deleted: until when they count
        self._overdue: set[str] = set()  # those that count no more
        self._unseen: dict[str, float | None] = {}  # pods that the watch has not shown: since when, None: just now

    # ---- from the watch ----------------------------------------------------------------------------------------------

    def quota_changed(self, change: Change[ResourceQuota]) -> None:
        """Take a quota as it is now."""
        if change.kind == "deleted":
            self._drop_limit(change.key.namespace, change.key.name)
            return
        limit = read_limit(change.object)
        before = self.book.limit(limit.namespace, limit.name)
        for problem in limit.problems if before is None or before.problems != limit.problems else ():
            self._warn(change.object, problem)
        if not limit.hard:
            self._drop_limit(limit.namespace, limit.name)
            return
        self.set_limit(limit)

    def _drop_limit(self, namespace: str, name: str) -> None:
        """Forget a quota, and with a namespace's last one its pods: they are counted anew where one comes again."""
        self.book.drop_quota(namespace, name)
        if not self.book.is_limited(namespace):
            self._counted.discard(namespace)
            self.book.forget(namespace)

    def set_limit(self, limit: Limit) -> None:
        """Take a quota; the first one of a namespace has its pods counted."""
        self.book.set_quota(limit)
        if limit.namespace not in self._counted:
            self._counted.add(limit.namespace)
            for pod in self._pods():
                if pod.metadata.namespace == limit.namespace:
                    self.set_pod(pod)

    def pod_changed(self, change: Change[WatchedPod]) -> None:
        """Take a pod as it is now, where somebody limits its namespace."""
        self._unseen.pop(change.key.uid, None)
        if change.kind == "deleted":
            self._ending.pop(change.key.uid, None)
            self._overdue.discard(change.key.uid)
        if change.key.namespace not in self._counted:
            return
        if change.kind == "deleted":
            self.book.drop_pod(change.key.uid)
        else:
            self.set_pod(change.object)

    def set_pod(self, pod: WatchedPod) -> None:
        """Count a pod; none that has ended, was deleted unplaced, is stuck, or asks for nothing of ours."""
        if pod.is_finished or not (pod.node or pod.waits) or pod.uid in self._overdue:
            self.book.drop_pod(pod.uid)
            return
        due = pod.overdue_at
        if due is not None:
            self._ending[pod.uid] = due
        if pod.node:
            self._set_placed(pod)
            return
        ask = self._read(pod)
        if ask is not None:
            self._put(pod, self._asked(ask), placed=False)

    def _set_placed(self, pod: WatchedPod) -> None:
        grant = _grant_of(pod)
        if grant is None:  # ours is not on it, so kubelet's agent refuses it
            self.book.drop_pod(pod.uid)
            return
        self._put(pod, self._granted(pod, grant), placed=True)

    def _put(self, pod: PodView, charge: Charge, *, placed: bool) -> None:
        meta = pod.metadata
        created = meta.creation_timestamp or ""
        traits = traits_of(pod.spec)
        self.book.set_pod(QuotaPod(meta.uid or "", meta.namespace or "", created, traits, charge, placed))

    # ---- from the scheduler ------------------------------------------------------------------------------------------

    def narrowed(self, pod: PodView, ask: PodAsk) -> PodAsk:
        """Return the ask as the quotas allow it: on smaller cards only where a part of a larger one is too much.

        Raises QuotaRefused where there is no room for it at all.
        """
        if ask.namespace not in self._counted:
            return ask
        if not self.book.knows(ask.uid):
            self._put(pod, self._asked(ask), placed=False)  # the watch has not brought it yet
            self._unseen[ask.uid] = None
        return self._narrowed(ask, self.book.verdict(ask.uid), partial(self.book.exceeds, ask.uid))

    def supposed(self, pod: PodView, ask: PodAsk) -> PodAsk:
        """Return the same of a pod that may not exist, and count nothing: somebody simulates."""
        if ask.namespace not in self._counted or self.book.knows(ask.uid):
            return self.narrowed(pod, ask)
        exceeds = partial(self.book.would_exceed, ask.namespace, traits_of(pod.spec))
        return self._narrowed(ask, exceeds(self._asked(ask)), exceeds)

    def _narrowed(self, ask: PodAsk, exceeded: Exceeded | None, exceeds: Callable[[Charge], Exceeded | None]) -> PodAsk:
        if exceeded is not None:
            raise QuotaRefused(ask.subject, exceeded)
        most = largest_allowed(ask, self._ordered_sizes(), exceeds)
        if most is None:
            return ask
        return replace(ask, shape=replace(ask.shape, wishes=replace(ask.shape.wishes, card_at_most=most)))

    def hold(self, ask: PodAsk, placement: Placement) -> None:
        """Count what the books have reserved for a pod; raises QuotaRefused where the quotas do not allow it."""
        if ask.namespace not in self._counted:
            return
        charge = placed_charge(placement, ask.shape, lambda uuid: self._card(placement.node, uuid))
        exceeded = self.book.exceeds(ask.uid, charge)
        if exceeded is not None:
            raise QuotaRefused(ask.subject, exceeded)
        self.book.hold(ask.uid, charge)

    def release(self, ask: PodAsk) -> None:
        """Count a pod as waiting again: its reservation was given back."""
        if ask.namespace in self._counted:
            self.book.release(ask.uid, self._asked(ask))

    def forget_unseen(self, now: float, is_promised: Callable[[str], bool]) -> None:
        """Forget pods that were asked about and never shown, unless cards are promised to them; called now and then."""
        for uid, since in list(self._unseen.items()):
            if since is None:
                self._unseen[uid] = now
            elif now - since > UNSEEN_S and not is_promised(uid):
                del self._unseen[uid]
                self.book.drop_pod(uid)

    def forget_overdue(self, date: datetime) -> None:
        """Let pods go that were deleted and cannot end (their node is lost), as Kubernetes' own quotas do.

        Their cards stay theirs until they are gone; called now and then.
        """
        for uid in [uid for uid, due in self._ending.items() if due < date]:
            del self._ending[uid]
            self._overdue.add(uid)
            self.book.drop_pod(uid)

    def check_grant(self, pod: WatchedPod, grant: Grant) -> None:
        """Raise QuotaRefused where the quotas do not allow what a bound pod has more with this grant than now."""
        if (pod.metadata.namespace or "") in self._counted:
            now = dict(self.book.charge(pod.uid))
            more = tuple((key, amount) for key, amount in self._granted(pod, grant) if amount > now.get(key, 0))
            exceeded = self.book.exceeds(pod.uid, more)
            if exceeded is not None:
                raise QuotaRefused(pod.subject, exceeded)

    def count_grant(self, pod: WatchedPod, grant: Grant) -> None:
        """Count a bound pod as if it had this grant."""
        if (pod.metadata.namespace or "") in self._counted:
            self.book.hold(pod.uid, self._granted(pod, grant))

    def recount_all(self) -> None:
        """Count all pods anew: cards are others than before."""
        for pod in self._pods() if self._counted else ():
            self.recount(pod)

    def recount(self, pod: WatchedPod) -> None:
        """Count a pod as it is."""
        if (pod.metadata.namespace or "") in self._counted:
            self.set_pod(pod)

    def _granted(self, pod: WatchedPod, grant: Grant) -> Charge:
        ask, node = self._read(pod), pod.node
        return granted_charge(grant, pod.order, ask.shape if ask else None, lambda uuid: self._card(node, uuid))

    def _asked(self, ask: PodAsk) -> Charge:
        return asked_charge(ask.shape, physical=min(self._sizes(), default=0))

    def _ordered_sizes(self) -> Sequence[int]:
        return sorted(set(self._sizes()))


def largest_allowed(ask: PodAsk, sizes: Sequence[int], exceeds: Callable[[Charge], Exceeded | None]) -> int | None:
    """Return the size of the largest cards on which a pod's charge is allowed; None: any of the sizes there are.

    `sizes` in ascending order, of which the smallest is allowed. Only parts of cards are charged by the card's size.
    """
    if all(one.memory is not None or one.profile for one in ask.shape.containers):
        return None
    allowed = [size for size in sizes if exceeds(asked_charge(ask.shape, physical=size)) is None]
    return None if len(allowed) == len(sizes) else max(allowed, default=0)


def granted(pod: WatchedPod) -> Grant | None:
    """Return what a bound pod has, None where it says nothing; raises GrantError where that cannot be read."""
    subject, annotations = pod.subject, pod.annotations
    if annotations.get(names.GRANT):
        return parse_grant(annotations[names.GRANT], uid=pod.uid, node=pod.node, pod=subject)
    if TWIN in annotations:
        return parse_twin(annotations[TWIN], pod.order, uid=pod.uid, node=pod.node, pod=subject)
    return None


def _grant_of(pod: WatchedPod) -> Grant | None:
    """Return what a bound pod has, None where nothing that can be read says it."""
    try:
        return granted(pod)
    except GrantError as error:
        log.warning("not counted in quotas", pod=pod.subject, error=str(error))
    return None


def reads(read: Callable[[PodView], PodAsk | None]) -> Callable[[PodView], PodAsk | None]:
    """Return a reader to which a pod that cannot be read asks for nothing: it is told so where it is to be placed."""

    def quiet(pod: PodView) -> PodAsk | None:
        try:
            return read(pod)
        except PartageError:
            return None

    return quiet
