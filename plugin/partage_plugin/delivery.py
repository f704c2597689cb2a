"""What `Allocate` answers: how a container gets its hand-over and the library, the same for every card.

Two mounts for the hand-over: its directory read-only and, over it, its ledger read-write. The library comes by a
read-only /etc/ld.so.preload, which nobody in the container can unset (and by what Nix's loader reads in its stead), or
by LD_PRELOAD where the administrator asks for it. What belongs to the granted card is in the CDI spec that the answer
names and `PreStartContainer` writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from partage.model import LaunchError, names
from partage.model.guarded import PRELOAD_FILES
from partage_plugin.handover.cdi import device_name
from partage_plugin.library import absent
from partage_plugin.proto.deviceplugin.v1beta1 import api_pb2
from partage_plugin.refusal import Refused

if TYPE_CHECKING:
    from partage.run.handover import HandOver
    from partage_plugin.handover.desk import Claim
    from partage_plugin.library import Library

PRELOAD_VARIABLE: Final = "LD_PRELOAD"
NOT_DELIVERED: Final = "LibraryMissing"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How libvgpu.so gets into containers; `by_variable`: LD_PRELOAD instead of /etc/ld.so.preload."""

    library: Library
    by_variable: bool = False

    def answer(self, entry: HandOver) -> api_pb2.ContainerAllocateResponse:
        """Return the answer for one container; raises LaunchError where the library cannot be put in place."""
        library = self.library.ensure()
        inside = Path(names.HOST_ROOT)
        envs = {names.ENV_DIR: str(inside)}
        mounts = [
            _mount(inside, entry.path),
            _mount(inside / names.LEDGER_FILE, entry.ledger_path, writable=True),
            _mount(Path(names.CONTAINER_LIBRARY), library.path),
        ]
        if self.by_variable:
            envs[PRELOAD_VARIABLE] = names.CONTAINER_LIBRARY
        else:
            mounts += [_mount(Path(file), library.preload) for file in PRELOAD_FILES]
        return api_pb2.ContainerAllocateResponse(
            envs=envs, mounts=mounts, cdi_devices=[api_pb2.CDIDevice(name=device_name(entry.name))]
        )

    def check(self, claim: Claim) -> None:
        """Refuse a container for which the library is not in place: it would run without any limit."""
        try:
            self.library.ensure()
        except LaunchError as error:
            raise Refused(NOT_DELIVERED, error) from error
        file = absent(claim.files)
        if file is not None:
            subject = f"container {claim.container!r} of {claim.pod.full_name}"
            limit = "the library of the version under which it began holds its limits"
            step = "delete the pod and let its controller make a new one, or put the file back"
            raise Refused(NOT_DELIVERED, (subject, f"{file} is gone", limit, step))


def _mount(container: Path, host: Path, *, writable: bool = False) -> api_pb2.Mount:
    return api_pb2.Mount(container_path=str(container), host_path=str(host), read_only=not writable)
