"""Whether the API server refuses by now what earlier terms send.

A leader that was frozen in the midst of a bind may finish it whenever it wakes, and one whose request is still on its
way knows nothing of it. The policy of deploy/policies/terms.yaml refuses a grant of an earlier term than the Lease's;
the API server reads the Lease by a watch of its own, a moment after it changed hands. So a new term asks first, before
it lists anything: it posts a grant of the term before its own, as a dry run for a pod that does not exist, until that
is refused for its term. From then on that API server takes no promise of an earlier term; what it took before, the list
has. Others beside it, where there are several, are the same moment behind.

Called by the term. What can go wrong: nobody refuses (the policy is not installed), or nobody answers: said once in the
log, and the term goes on. Of two grants that do not go together a node's agent refuses the later, whatever happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from partage.kube.clock import within
from partage.model import names
from partage.scheduler.bind import TOO_MANY, BindOrder

if TYPE_CHECKING:
    from partage.kube import Clock
    from partage.scheduler.bind import Posts
    from partage.scheduler.leader import Term

POLICY: Final = "partage-terms"
NOBODY: Final = "partage-earlier-term"
PROOF_S: Final = 10.0  # where the API server is slow
TRIES: Final = 20  # that were answered, but not by the policy
AGAIN_S: Final = 0.05
REFUSED: Final = frozenset({403, 422})

log = structlog.get_logger("partage.scheduler")


async def wait_for_fence(poster: Posts, term: Term, clock: Clock) -> bool:
    """Return once grants of earlier terms are refused, or after a while; say whether they are."""
    if not term.number:
        return True
    try:
        refused = await within(clock, PROOF_S, _refused(poster, term.number - 1, clock))
    except TimeoutError:
        refused = False
    if not refused:
        step = "install deploy/policies/terms.yaml"
        log.warning("grants of earlier terms are not refused", term=term.number, policy=POLICY, step=step)
    return refused


async def _refused(poster: Posts, number: int, clock: Clock) -> bool:
    order = BindOrder("", names.NAMESPACE, NOBODY, "none", f'{{"term":{number}}}')
    answered = 0
    while answered < TRIES:
        answer = await poster.post(f"{order.path}?dryRun=All", order.body())
        if answer.status in REFUSED and POLICY in answer.message:
            return True
        answered += 0 < answer.status < TOO_MANY
        await clock.sleep(AGAIN_S)
    return False
