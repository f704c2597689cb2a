"""Fetching headers: only what was pinned, only headers, and an error that says what to do next."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import headers as fetcher
import pytest

from .conftest import TOP

if TYPE_CHECKING:
    from pathlib import Path


def test_without_network_the_error_names_the_file_and_where_to_put_it(tmp_path: Path) -> None:
    command = [sys.executable, str(TOP / "hook" / "gen" / "headers.py"), str(tmp_path / "out")]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("PIP_FIND_LINKS", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert f"put the file {fetcher.WHEELS[0].filename} into {tmp_path / 'partage' / 'headers'}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[fetcher.Wheel, Path]:
    """A wheel in a cache, pinned by its own hash, with a header, a library and a path that leads outside."""
    cache = tmp_path / "cache"
    cache.mkdir()
    pinned = fetcher.Wheel("some-package", "1.0", "", "cuda13")
    archive = cache / pinned.filename
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("nvidia/cu13/include/cuda.h", "int a;")
        entries.writestr("nvidia/cu13/include/sub/b.h", "int b;")
        entries.writestr("nvidia/cu13/include/../../../outside.h", "int c;")
        entries.writestr("nvidia/cu13/lib/libcudart.so", "ELF")
    return replace(pinned, sha256=hashlib.sha256(archive.read_bytes()).hexdigest()), cache


def test_only_headers_are_unpacked_and_a_cached_wheel_needs_no_network(
    wheel: tuple[fetcher.Wheel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, cache = wheel
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(fetcher, "WHEELS", (pinned,))
    fetcher.fetch(tmp_path / "out", cache)
    fetcher.fetch(tmp_path / "out", cache)
    found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert found == {"cuda13/cuda.h", "cuda13/sub/b.h", "cuda13.sha256"}


def test_a_changed_file_in_the_cache_is_not_used(
    wheel: tuple[fetcher.Wheel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, cache = wheel
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with (cache / pinned.filename).open("ab") as archive:
        archive.write(b"changed")
    with pytest.raises(fetcher.HeadersError, match=r"cannot download some-package==1\.0"):
        fetcher.download(pinned, cache)
