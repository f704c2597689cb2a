"""Who takes how much of which ResourceQuota: every living pod of ours, placed or waiting, in the quotas that mean it.

Fed from the API (objects of pods and quotas) and by the scheduler (what it holds for a pod between filter and binding);
no I/O, no clock, one thread. A placed pod always counts. One that waits counts as soon as there is room for it, older
ones first, and keeps that room while it waits, as natively a pod counts from its creation on; one for which no room is
left does not count, and `verdict` says of which quota there is too little. So what is used is over a limit only where
somebody lowered the limit. What is used is the sum of what is here, never a counter that could drift.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from partage.scheduler.quota.meters import format_amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from partage.scheduler.quota.charge import Charge
    from partage.scheduler.quota.limits import Limit
    from partage.scheduler.quota.scope import Traits

CODE: Final = "ResourceQuotaNotFit"
Group = tuple["Charge", tuple[str, ...]]  # pods that fit or do not fit together: charge, names of their quotas


@dataclass(frozen=True, slots=True)
class QuotaPod:
    """One living pod. `created` orders those that wait; `placed`: it has cards, bound or held for it."""

    uid: str
    namespace: str
    created: str
    traits: Traits
    charge: Charge
    placed: bool = False

    @property
    def order(self) -> tuple[str, str]:
        """Who waits longer: the smaller one."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Why a pod does not fit into a quota: amounts as quantities in the quota's own unit."""

    quota: str
    key: str
    asked: str
    used: str
    hard: str
    left: str

    @property
    def code(self) -> str:
        """The stable word for it."""
        return CODE

    def __str__(self) -> str:
        return (
            f"resourcequota {self.quota}, {self.key}: {self.asked} asked, {self.used} used; {self.hard} allowed; ask "
            f"for at most {self.left}, or end other pods of the namespace"
        )


@dataclass(slots=True)
class _Entry:
    pod: QuotaPod
    limits: tuple[str, ...]
    counted: bool = False

    @property
    def group(self) -> Group:
        return self.pod.charge, self.limits


@dataclass(slots=True)
class _Room:
    """A namespace: its quotas, its pods, what is used, who waits."""

    limits: dict[str, Limit] = field(default_factory=dict)
    pods: dict[str, _Entry] = field(default_factory=dict)
    used: defaultdict[str, defaultdict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    waiting: dict[Group, list[tuple[tuple[str, str], str]]] = field(default_factory=dict)  # heaps, with ghosts
    fresh: list[str] = field(default_factory=list)  # came since it was settled
    freed: bool = False  # room may have come since

    # ---- counting ----------------------------------------------------------------------------------------------------

    def count(self, entry: _Entry, sign: int) -> None:
        entry.counted = sign > 0
        for name in entry.limits:
            used = self.used[name]
            for key, amount in entry.pod.charge:
                used[key] += sign * amount
        self.freed |= sign < 0

    def lacking(self, charge: Charge, limits: tuple[str, ...], own: _Entry | None = None) -> Exceeded | None:
        """Return the first quota in which a charge has no room, `own` being taken out of it first."""
        mine = dict(own.pod.charge) if own is not None and own.counted else {}
        for name in limits:
            limit, used = self.limits[name], self.used[name]
            for key, amount in charge:
                hard = limit.hard.get(key)
                others = used[key] - mine.get(key, 0)
                if hard is not None and others + amount > hard:
                    return _exceeded(limit, key, amount, others)
        return None

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let those that wait count, oldest first, as far as there is room."""
        if self.freed:
            self._settle_all()
        else:
            for uid in sorted(self.fresh, key=self._order):
                self._admit(uid)
        self.fresh.clear()
        self.freed = False

    def _order(self, uid: str) -> tuple[str, str]:
        entry = self.pods.get(uid)
        return entry.pod.order if entry else ("", uid)

    def _admit(self, uid: str) -> bool:
        entry = self.pods.get(uid)
        if entry is None or entry.counted:
            return True
        if self.lacking(*entry.group):
            return False
        self.count(entry, 1)
        return True

    def _settle_all(self) -> None:
        heads = [(heap[0], group) for group, heap in self.waiting.items() if heap]
        heapq.heapify(heads)
        while heads:
            (_, uid), group = heapq.heappop(heads)
            heap = self.waiting[group]
            if self._is_in(uid, group) and not self._admit(uid):
                continue  # and so is everybody of this group, until room comes
            heapq.heappop(heap)
            if heap:
                heapq.heappush(heads, (heap[0], group))
            else:
                del self.waiting[group]

    def _is_in(self, uid: str, group: Group) -> bool:
        entry = self.pods.get(uid)
        return entry is not None and not entry.counted and entry.group == group

    def wait(self, entry: _Entry) -> None:
        self.fresh.append(entry.pod.uid)
        heapq.heappush(self.waiting.setdefault(entry.group, []), (entry.pod.order, entry.pod.uid))


class QuotaBook:
    """All namespaces; quotas are known by namespace and name, pods by UID."""

    def __init__(self) -> None:
        self._rooms: defaultdict[str, _Room] = defaultdict(_Room)
        self._where: dict[str, str] = {}  # pod's UID -> namespace
        self._changed: set[tuple[str, str]] = set()  # quotas whose use may be another than when it was last taken
        self._tell: Callable[[], None] = lambda: None

    def listen(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever what is used may have changed; `take_changed` says of which quotas."""
        self._tell = tell

    def take_changed(self) -> set[tuple[str, str]]:
        """Return namespace and name of the quotas whose use may be another than at the last call."""
        changed, self._changed = self._changed, set()
        return changed

    # ---- what there is -----------------------------------------------------------------------------------------------

    def set_quota(self, limit: Limit) -> None:
        """Take a quota as it is now."""
        room = self._rooms[limit.namespace]
        before = room.limits.get(limit.name)
        if before is not None and before == limit:
            return
        room.limits[limit.name] = limit
        self._recounted(limit.namespace)

    def drop_quota(self, namespace: str, name: str) -> None:
        """Forget a quota: what it limited is limited by the others alone."""
        if namespace in self._rooms and self._rooms[namespace].limits.pop(name, None) is not None:
            self._changed.discard((namespace, name))
            self._recounted(namespace)

    def is_limited(self, namespace: str) -> bool:
        """Whether a namespace has any quota here."""
        return namespace in self._rooms and bool(self._rooms[namespace].limits)

    def forget(self, namespace: str) -> None:
        """Forget a namespace and its pods: nobody limits it any more. Many come and go."""
        room = self._rooms.pop(namespace, None)
        for uid in room.pods if room is not None else ():
            del self._where[uid]

    def set_pod(self, pod: QuotaPod) -> None:
        """Take a pod as it is now; one that the API calls waiting while cards are held for it stays placed."""
        entry = self._entry(pod.uid)
        if entry is not None and entry.pod == pod:
            return
        if entry is not None and entry.pod.placed and not pod.placed and pod.created == entry.pod.created:
            return  # held: `release` ends that, or the pod's end
        self._put(pod)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that has ended or is gone; of one that is not here nothing happens, however often."""
        entry = self._entry(uid)
        if entry is None:
            return
        room = self._rooms[self._where.pop(uid)]
        del room.pods[uid]
        if entry.counted:
            room.count(entry, -1)
        self._touch(entry)

    def hold(self, uid: str, charge: Charge) -> None:
        """Count a pod as placed, with what its cards come to; checked before with `exceeds`."""
        entry = self._entry(uid)
        if entry is not None:
            self._put(replace(entry.pod, charge=charge, placed=True))

    def release(self, uid: str, charge: Charge) -> None:
        """Let a pod wait again whose cards were given back, with what it asks for."""
        entry = self._entry(uid)
        if entry is not None and entry.pod.placed:
            self._put(replace(entry.pod, charge=charge, placed=False))

    def knows(self, uid: str) -> bool:
        """Whether a pod is here."""
        return uid in self._where

    def charge(self, uid: str) -> Charge:
        """Return what a pod comes to, nothing for one that is not here."""
        entry = self._entry(uid)
        return () if entry is None else entry.pod.charge

    # ---- what it comes to --------------------------------------------------------------------------------------------

    def verdict(self, uid: str) -> Exceeded | None:
        """Return why a pod that waits must wait for its quotas, None where it need not."""
        entry = self._entry(uid)
        if entry is None:
            return None
        room = self._settled(entry.pod.namespace)
        return None if entry.counted else room.lacking(*entry.group)

    def exceeds(self, uid: str, charge: Charge) -> Exceeded | None:
        """Return why a pod's charge could not be this one, None where it could."""
        entry = self._entry(uid)
        if entry is None:
            return None
        return self._settled(entry.pod.namespace).lacking(charge, entry.limits, entry)

    def would_exceed(self, namespace: str, traits: Traits, charge: Charge) -> Exceeded | None:
        """Return why a pod that is not here yet would find no room, None where it would."""
        room = self._settled(namespace)
        return room.lacking(charge, tuple(name for name, one in sorted(room.limits.items()) if one.matches(traits)))

    def usage(self, namespace: str, name: str) -> Mapping[str, int]:
        """Return key -> what is used of a quota, for all keys that it limits."""
        room = self._settled(namespace)
        limit = room.limits.get(name)
        return {key: room.used[name][key] for key in limit.hard} if limit else {}

    def limit(self, namespace: str, name: str) -> Limit | None:
        """Return a quota, or None."""
        return self._rooms[namespace].limits.get(name) if namespace in self._rooms else None

    def limits(self) -> Iterator[Limit]:
        """Yield all quotas."""
        for room in self._rooms.values():
            yield from room.limits.values()

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _entry(self, uid: str) -> _Entry | None:
        return self._rooms[self._where[uid]].pods.get(uid) if uid in self._where else None

    def _settled(self, namespace: str) -> _Room:
        room = self._rooms[namespace]
        if room.freed or room.fresh:
            room.settle()
            self._note(namespace, room.limits)
        return room

    def _put(self, pod: QuotaPod) -> None:
        self.drop_pod(pod.uid)
        room = self._rooms[pod.namespace]
        entry = _Entry(pod, tuple(name for name, limit in sorted(room.limits.items()) if limit.matches(pod.traits)))
        self._where[pod.uid] = pod.namespace
        room.pods[pod.uid] = entry
        if pod.placed:
            room.count(entry, 1)
        else:
            room.wait(entry)
        self._touch(entry)

    def _touch(self, entry: _Entry) -> None:
        self._note(entry.pod.namespace, entry.limits)

    def _note(self, namespace: str, quotas: Iterable[str]) -> None:
        before = len(self._changed)
        self._changed.update((namespace, name) for name in quotas)
        if len(self._changed) > before:
            self._tell()

    def _recounted(self, namespace: str) -> None:
        """Count a namespace anew: its quotas are others than before."""
        room = self._rooms[namespace]
        pods = [entry.pod for entry in room.pods.values()]
        fresh = _Room(limits=room.limits)
        self._rooms[namespace] = fresh
        for pod in pods:
            self._where.pop(pod.uid)
        for pod in pods:
            self._put(pod)
        self._note(namespace, room.limits)


def _exceeded(limit: Limit, key: str, asked: int, used: int) -> Exceeded:
    meter, like, hard = limit.meter(key), limit.written.get(key, ""), limit.hard[key]
    left = max(0, hard - used) // meter.unit * meter.unit
    told = [format_amount(meter, amount, like=like) for amount in (asked, used, hard, left)]
    return Exceeded(f"{limit.namespace}/{limit.name}", key, *told)
