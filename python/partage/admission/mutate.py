"""What admission changes in a pod with shares, as a JSON patch: nothing that its author decided otherwise.

    scheduler           ours, where the pod names none
    resources           under the vendor's names, as plain numbers, defaults filled in; what was rounded in a note
    environment         CUDA_TASK_PRIORITY as HAMi has it; NVIDIA_VISIBLE_DEVICES `none` in containers without a share,
                        also of pods without any that may come to a card by NVIDIA's runtime, since images name all
                        cards (NVIDIA's own plugin tells those that ask it for one);
                        NCCL's time-outs in distributed jobs, whose half would hang for ever without the other
    seccomp profile     the runtime's, where the pod names none
    runtime class, priority class       where the administrator wants them

Done to a pod that was changed so already, it changes nothing. Called by `decide`; pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from partage.admission.patch import Patch, pointer
from partage.devices.ask import NAMES
from partage.devices.nvidia.resources import BACKEND as NVIDIA
from partage.devices.nvidia.resources import KINDS as CARDS
from partage.devices.nvidia.resources import PRIORITY
from partage.devices.quantity import parse_quantity
from partage.model import names
from partage.model.pod import DEFAULT_SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from partage.admission.options import AdmissionOptions
    from partage.devices.ask import Found, Reading
    from partage.model.pod import ContainerView, PodView

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NVIDIA_PREFIX: Final = "nvidia.com/"  # of its own plugin's resources too: mig-1g.5gb, gpu.shared
NVIDIA_RUNTIME: Final = "nvidia"  # how the runtime classes begin that its toolkit makes
TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
_NO_CARD: Final = frozenset({"", "none", "void"})
_PRIORITY_CLASSES: Final = {1: "p1-onlineserving", 2: "p2-batchtraining"}
#: Labels and annotations by which operators mark the pods of a distributed job.
DISTRIBUTED: Final = frozenset(
    {
        names.GANG,
        "batch.kubernetes.io/job-completion-index",
        "jobset.sigs.k8s.io/jobset-name",
        "kueue.x-k8s.io/pod-group-name",
        "leaderworkerset.sigs.k8s.io/name",
        "pod-group.scheduling.sigs.k8s.io/name",
        "ray.io/cluster",
        "scheduling.k8s.io/group-name",
        "scheduling.x-k8s.io/pod-group",
        "training.kubeflow.org/job-name",
        "volcano.sh/job-name",
    }
)


def mutate(pod: PodView, reading: Reading | None, options: AdmissionOptions) -> tuple[dict[str, object], ...]:
    """Return the operations that make the pod as it is to be; `reading` is None where it asks for nothing."""
    patch = Patch()
    places = {found.path: found for found in reading.found} if reading else {}
    shared = {path for path, found in places.items() if found.ask.backend == NVIDIA}
    near = options.hide_cards and (bool(shared) or comes_near(pod))
    if reading is not None:
        _of_pod(patch, pod, reading, options)
    for container, _, path in pod.each():
        found = places.get(path)
        if options.hide_cards:
            hide_cards(patch, container, path, alone=near and path not in shared and not asks_for_cards(container))
        if found is not None:
            _resources(patch, found)
            _environment(patch, pod, found, options)
        _requests_alone(patch, container, path, found.amounts.written if found else ())
    return tuple(patch.operations)


def hide_by_hand(pod: PodView, options: AdmissionOptions) -> tuple[dict[str, object], ...]:
    """Return what a pod that is otherwise left alone gets: no card by hand, where a container asks for none either.

    One that names amounts alone (`nvidia.com/gpumem`) may get a card from whoever places it.
    """
    patch, near = Patch(), comes_near(pod)
    for container, _, path in pod.each():
        if options.hide_cards and not asks_for_cards(container):
            hide_cards(patch, container, path, alone=near and NAMES.isdisjoint(_amounts(container)))
    return tuple(patch.operations)


def _of_pod(patch: Patch, pod: PodView, reading: Reading, options: AdmissionOptions) -> None:
    spec, annotations = pod.spec, pod.metadata.annotations
    if pod.scheduler == DEFAULT_SCHEDULER and options.scheduler != DEFAULT_SCHEDULER:
        patch.put("/spec/schedulerName", options.scheduler)
    asked = {found.ask.name: dict(found.amounts.asked) for found in reading.found if found.amounts.asked}
    if asked:
        text = msgspec.json.encode(asked, order="sorted").decode()
        patch.put_into("/metadata/annotations", annotations, names.ASKED, text)
    for found in reading.found:
        for key, value in found.amounts.annotations.items():
            patch.put_into("/metadata/annotations", annotations, key, value)
    if options.runtime_class and not spec.runtime_class_name and any(f.ask.backend == NVIDIA for f in reading.found):
        patch.put("/spec/runtimeClassName", options.runtime_class)
    security = spec.security_context
    if options.seccomp and (security is None or security.seccomp_profile is None):
        profile = {"type": "RuntimeDefault"}  # without it any user may mount over the library in a user namespace
        if security is None:
            patch.put("/spec/securityContext", {"seccompProfile": profile})
        else:
            patch.put("/spec/securityContext/seccompProfile", profile)
    wanted = _priority_class(reading)
    if options.priority_classes and wanted and not spec.priority_class_name:
        patch.put("/spec/priorityClassName", wanted)
        # The API server has filled these in for the class that the pod had not; left, they contradict the new one.
        if spec.priority is not None:
            patch.remove("/spec/priority")
        if spec.preemption_policy is not None:
            patch.remove("/spec/preemptionPolicy")


def _priority_class(reading: Reading) -> str:
    """Return the class of the first among the containers' priorities; nothing where none names one."""
    named = [found.amounts.priority for found in reading.found if found.amounts.priority is not None]
    return _PRIORITY_CLASSES.get(min(named), "") if named else ""


def _resources(patch: Patch, found: Found) -> None:
    """Write the container's resources as its vendor's own: in limits, and in requests where those say otherwise."""
    resources = found.container.resources
    limits = resources.limits if resources else None
    requests = resources.requests if resources else None
    path = f"{found.path}/resources"
    for name, value in found.amounts.written.items():
        for part, there in (("limits", limits), ("requests", requests)):
            if value is None:
                if there is not None and name in there:
                    patch.remove(f"{path}/{part}/{pointer(name)}")
            elif not _says(there, name, value) and (part == "limits" or (there is not None and name in there)):
                patch.put_into(f"{path}/{part}", there, name, str(value))


def _requests_alone(patch: Patch, container: ContainerView, path: str, written: Collection[str]) -> None:
    """Give amounts that stand in requests alone the limits that the API wants of such resources."""
    resources = container.resources
    if resources is None or not resources.requests:
        return
    for name, amount in resources.requests.items():
        if name in NAMES and name not in written and name not in (resources.limits or ()):
            patch.put_into(f"{path}/resources/limits", resources.limits, name, str(amount))


def _says(there: Mapping[str, str | int | float] | None, name: str, value: int) -> bool:
    """Whether an amount stands there as this number; `4Gi` is no number of MiB."""
    amount = parse_quantity(there[name]) if there is not None and name in there else None
    return amount is not None and amount.value == value and not amount.is_binary


def _environment(patch: Patch, pod: PodView, found: Found, options: AdmissionOptions) -> None:
    container = found.container
    path = f"{found.path}/env"
    amounts = _amounts(container)
    wanted = {TASK_PRIORITY: str(amounts[PRIORITY])} if PRIORITY in amounts else {}
    if options.nccl_seconds and _is_distributed(pod):
        wanted |= {
            "NCCL_ASYNC_ERROR_HANDLING": "1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "NCCL_TIMEOUT": str(options.nccl_seconds),
        }
    there = {variable.name for variable in container.env or ()}
    for name, value in wanted.items():
        if name not in there:
            patch.append(path, container.env, {"name": name, "value": value})


def _is_distributed(pod: PodView) -> bool:
    meta = pod.metadata
    return not (DISTRIBUTED.isdisjoint(meta.labels or ()) and DISTRIBUTED.isdisjoint(meta.annotations or ()))


def hide_cards(patch: Patch, container: ContainerView, path: str, *, alone: bool) -> None:
    """Tell a container of no card: one that names cards by itself, and (`alone`) one that has no share.

    A container with a share is told of its cards by the agent. A privileged one sees all of them anyway.
    """
    security = container.security_context
    if security is not None and security.privileged:
        return
    for number in _by_hand(container):
        patch.replace(f"{path}/env/{number}", {"name": VISIBLE, "value": "none"})
    if alone and all(variable.name != VISIBLE for variable in container.env or ()):
        patch.append(f"{path}/env", container.env, {"name": VISIBLE, "value": "none"})


def comes_near(pod: PodView) -> bool:
    """Whether a pod may come to cards: by NVIDIA's runtime, by naming them, or where it names 0 of its resources."""
    if (pod.spec.runtime_class_name or "").startswith(NVIDIA_RUNTIME):
        return True
    return any(
        any(True for _ in _by_hand(container)) or any(name.startswith(NVIDIA_PREFIX) for name in _amounts(container))
        for container, _, _ in pod.each()
    )


def asks_for_cards(container: ContainerView) -> bool:
    """Whether it asks for a card of NVIDIA's by whatever resource: who serves that one tells it of its card."""
    return any(
        (name in CARDS or (name.startswith(NVIDIA_PREFIX) and name not in NAMES)) and _some(amount)
        for name, amount in _amounts(container).items()
    )


def _amounts(container: ContainerView) -> dict[str, str | int | float]:
    resources = container.resources
    return {**(resources.requests or {}), **(resources.limits or {})} if resources else {}


def _some(amount: str | float) -> bool:
    found = parse_quantity(amount)
    return found is None or found.value != 0


def _by_hand(container: ContainerView) -> Iterator[int]:
    """Yield where the container's environment names cards."""
    for number, variable in enumerate(container.env or ()):
        if variable.name == VISIBLE and variable.value not in _NO_CARD:
            yield number
