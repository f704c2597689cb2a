"""We test these aspects of finding the native parts: a library that the loader would silently ignore is refused; a
simulated driver is never used beside a real one unless that is forced."""

from __future__ import annotations

import pytest

from partage.model import DeviceError, LaunchError
from partage.run import libraries


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A directory with what a build would leave."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libvgpu.so"):
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.setenv("PARTAGE_SIM_LIBRARIES", str(tmp_path))
    monkeypatch.setenv("PARTAGE_LIBRARY", str(tmp_path / "libvgpu.so"))
    monkeypatch.delenv("PARTAGE_SIM_FORCE", raising=False)
    return tmp_path


def test_without_a_real_driver_the_simulated_one_is_used(built, monkeypatch):
    monkeypatch.setattr(libraries, "real_driver", lambda: False)
    assert libraries.driver_directory(simulate=False) == built
    assert libraries.driver_directory(simulate=True) == built


def test_beside_a_real_driver_the_simulated_one_must_be_forced(built, monkeypatch):
    monkeypatch.setattr(libraries, "real_driver", lambda: True)
    assert libraries.driver_directory(simulate=False) is None
    with pytest.raises(DeviceError, match="PARTAGE_SIM_FORCE"):
        libraries.driver_directory(simulate=True)
    monkeypatch.setenv("PARTAGE_SIM_FORCE", "1")
    assert libraries.driver_directory(simulate=False) == built


def test_no_driver_at_all_says_what_to_do(built, monkeypatch):
    monkeypatch.setattr(libraries, "real_driver", lambda: False)
    (built / "libcuda.so.1").unlink()
    with pytest.raises(DeviceError, match="make build"):
        libraries.driver_directory(simulate=False)


def test_a_path_that_ld_so_would_split_is_refused(built, monkeypatch):
    odd = built / "a b"
    odd.mkdir()
    (odd / "libvgpu.so").write_bytes(b"x")
    monkeypatch.setenv("PARTAGE_LIBRARY", str(odd / "libvgpu.so"))
    with pytest.raises(LaunchError, match="LD_PRELOAD is split"):
        libraries.find_library()


def test_a_library_that_cannot_be_mapped_is_refused(built):
    (built / "libvgpu.so").write_bytes(b"")
    with pytest.raises(LaunchError, match="loader would ignore it"):
        libraries.find_library()


def test_a_missing_library_names_where_it_was_sought(built):
    (built / "libvgpu.so").unlink()
    with pytest.raises(LaunchError, match=str(built)):
        libraries.find_library()
