"""What would let a pod with shares out of them: said by whoever reads the pod, so webhook and scheduler refuse alike.

A pod that came past the webhook (it was down, or is passed over) and names our scheduler must get no grant either.
Called by `ask.py` for pods, and by admission for ephemeral containers, which no scheduler sees. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partage.model.errors import Problem, cut
from partage.model.guarded import guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partage.devices.requests import AskOptions
    from partage.model.pod import ContainerView, PodView

STEP: Final = "drop it, or run what needs it in a pod without shares"
_UNCONFINED: Final = frozenset({"ALL", "SYS_ADMIN"})


def escapes(view: PodView, options: AskOptions) -> Iterator[Problem]:
    """Yield what makes a share mean nothing: privileged containers see every device node, and Windows has none.

    So does what a pod has mounted over what holds the limit. Where pods are to be confined, also the host's pids, by
    which root reaches into others' containers, and SYS_ADMIN, which can mount over what holds the limit. The rest no
    administrator can allow.
    """
    for container, _, _ in view.each():
        yield from privileged(container, f"container {container.name}", STEP)
    if view.spec.os is not None and view.spec.os.name == "windows":
        accepted = "shares are held on Linux nodes"
        yield Problem("spec.os.name", "windows", accepted, "leave the shares out, or use a Linux image")
    for container, _, _ in view.each():
        yield from covering(container)
    if options.confined and view.spec.host_pid:
        yield Problem("spec.hostPID", "true", "a pod with shares sees its own processes only", STEP)
    for container, _, _ in view.each():
        yield from unconfined(container, f"container {container.name}", options)


def privileged(container: ContainerView, where: str, step: str) -> Iterator[Problem]:
    """Yield that a container is privileged."""
    if container.security_context is not None and container.security_context.privileged:
        accepted = "a pod with shares has no privileged container, for that sees whole cards"
        yield Problem(where, "privileged", accepted, step)


def covering(container: ContainerView) -> Iterator[Problem]:
    """Yield what of a container would be mounted over what holds its limits."""
    paths = [("volumeMounts", mount.mount_path) for mount in container.volume_mounts or ()]
    paths += [("volumeDevices", device.device_path) for device in container.volume_devices or ()]
    paths.append(("terminationMessagePath", container.termination_message_path or ""))
    for field, path in paths:
        place = guarded(path)
        if place is not None:
            where, accepted = f"container {container.name}, {field}", f"{place} is the library's"
            yield Problem(where, f"a mount at {cut(path)}", accepted, "mount it elsewhere")


def unconfined(container: ContainerView, where: str, options: AskOptions) -> Iterator[Problem]:
    """Yield the capabilities by which a container gets out of the pod's shares, where pods are to be confined."""
    security = container.security_context
    if not options.confined or security is None or security.capabilities is None:
        return
    added = {name.upper().removeprefix("CAP_") for name in security.capabilities.add or ()}
    for name in sorted(added & _UNCONFINED):
        accepted = "a pod with shares cannot mount over what holds its limits"
        yield Problem(where, f"capability {name}", accepted, STEP)
