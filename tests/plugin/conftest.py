"""A short directory for each test: the path of a unix socket has at most 107 bytes. And time for those who answer here:
they are in the test's own process, which a busy machine may not run for as long as the agent waits for an answer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partage_plugin.kubelet import foreign, podresources, register
from tests.plugin.kubelet import HANG_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="partage-test.") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _whoever_is_there_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for room, name in ((foreign, "ANSWER_S"), (podresources, "PATIENCE_S"), (register, "ANSWER_S")):
        monkeypatch.setattr(room, name, HANG_S)
