"""One release for all tests of this directory: it is installed before the first and gone after the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.installed.release import Installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.binaries import Binaries
    from tests.cluster.cluster import Cluster


@pytest.fixture(scope="package")
def installed(cluster: Cluster, chart_tools: Binaries) -> Iterator[Installed]:
    made = Installed(cluster, chart_tools)
    made.upgrade()
    try:
        made.wait_serving()
        yield made
    finally:
        made.uninstall()
