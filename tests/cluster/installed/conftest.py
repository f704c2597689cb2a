"""One release for all tests of this directory: it is installed before the first and gone after the last of them.

Also before one that comes after the test that takes it off: the order of tests is nobody's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.installed.release import Installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.binaries import Binaries
    from tests.cluster.cluster import Cluster


@pytest.fixture(scope="package")
def release(cluster: Cluster, chart_tools: Binaries) -> Iterator[Installed]:
    made = Installed(cluster, chart_tools)
    yield made
    made.uninstall()


@pytest.fixture
def installed(release: Installed) -> Installed:
    if not release.is_there:
        release.upgrade()
        release.wait_serving()
    return release
