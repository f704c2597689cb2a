"""What a bound pod has of its node's cards, from the record that it carries: our grant, else HAMi's twin.

Called by the books for every pod. A record that cannot be read closes the cards that it names, with the reason: the
pod has something of them and nobody can tell how much; everything else goes on. Cannot fail.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from partage.model import hami_twin
from partage.model.errors import GrantError
from partage.model.grant import parse_grant
from partage.model.need import granted_need
from partage.scheduler.cards import PodUse

if TYPE_CHECKING:
    from partage.scheduler.facts import PodFacts

_NAMED: Final = re.compile(r'"uuid"\s*:\s*"([^"\\]{1,63})"')
_LAST: Final = 1 << 62  # a record that cannot be read goes after all others


def use_of(pod: PodFacts) -> PodUse | None:
    """Return what a pod has of the node that it is bound to; None where it has nothing."""
    text = pod.grant or pod.twin
    if not pod.node or pod.finished or not (text or pod.seats):
        return None
    if not text:
        return PodUse(pod.subject, (_LAST, 0, pod.uid), {}, pod.seats, priority=pod.priority)
    subject = f"{pod.namespace}/{pod.name}"
    try:
        if pod.grant:
            grant = parse_grant(text, uid=pod.uid, node=pod.node, pod=subject)
        else:
            grant = hami_twin.parse_twin(text, pod.order, uid=pod.uid, node=pod.node, pod=subject)
    except GrantError as error:
        return PodUse(
            pod.subject,
            (_LAST, 0, pod.uid),
            {},
            pod.seats,
            closes=hami_twin.named_cards(text) | frozenset(_NAMED.findall(text)),
            trouble=str(error),
            priority=pod.priority,
        )
    return PodUse(pod.subject, grant.order, granted_need(grant, pod.order), pod.seats, priority=pod.priority)
