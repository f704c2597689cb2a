"""We test these aspects of specs with groups: they are named where the container runtime reads such specs, since one
that does not leaves out the whole file; and an agent that does not know the runtime yet takes none away."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from partage.devices.backend import ContainerEdits
from partage_plugin.handover.cdi import CdiDirectory, knows_groups
from partage_plugin.node_object import KubeNode

if TYPE_CHECKING:
    from pathlib import Path

NAME = "0" * 32
EDITS = ContainerEdits(groups=(44, 109))
NEW, OLD = "containerd://2.2.9", "containerd://1.7.27"


def written(path: Path, edits: ContainerEdits, runtime: str) -> tuple[str, list[int] | None]:
    directory = CdiDirectory(path, lambda: runtime)
    directory.write(NAME, edits, path / NAME)
    found = json.loads(directory.file_of(NAME).read_bytes())
    return found["cdiVersion"], found["devices"][0]["containerEdits"].get("additionalGids")


@pytest.mark.parametrize(
    ("runtime", "knows"),
    [
        (NEW, True),
        ("containerd://v2.0.0-rc.1", True),
        (OLD, False),
        ("cri-o://1.31.0", True),
        ("cri-o://1.30.4", False),
        ("docker://28.0.1", False),
        ("another://99.0", False),
        ("", None),
        ("containerd://Unknown", None),
        ("containerd://" + "9" * 5000, None),
    ],
)
def test_which_runtimes_read_groups(runtime: str, knows: bool | None) -> None:
    assert knows_groups(runtime) is knows


def test_groups_are_named_to_who_reads_them(tmp_path: Path) -> None:
    assert written(tmp_path, EDITS, OLD) == ("0.5.0", None)
    assert written(tmp_path, EDITS, "") == ("0.5.0", None)
    assert written(tmp_path, EDITS, NEW) == ("0.7.0", [44, 109])
    assert written(tmp_path, EDITS, "") == ("0.7.0", [44, 109]), "by the agent before this one, who knew"
    assert written(tmp_path, ContainerEdits(), "") == ("0.5.0", None), "of other edits"
    assert written(tmp_path, ContainerEdits(), NEW) == ("0.5.0", None)
    written(tmp_path, EDITS, NEW)
    assert written(tmp_path, EDITS, OLD) == ("0.5.0", None)


@pytest.mark.parametrize("has_status", [True, False])
def test_the_nodes_status_names_the_runtime(*, has_status: bool) -> None:
    info = SimpleNamespace(containerRuntimeVersion=NEW)
    status = SimpleNamespace(nodeInfo=info) if has_status else None

    class Api:
        async def get(self, *_: object) -> Any:
            return SimpleNamespace(metadata=None, status=status)

    api: Any = Api()
    assert asyncio.run(KubeNode(api, "n1").read()).runtime == (NEW if has_status else "")
