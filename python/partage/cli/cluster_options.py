"""What commands that ask a cluster have in common: whose kubeconfig, which namespace, and the packages they need."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from partage.model import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Of commands that read pods as the scheduler does.
config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The scheduler's file, by which pods are read; else the cluster's own, else the defaults.",
)
P = ParamSpec("P")
T = TypeVar("T")


def cluster_options(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the options that name a cluster."""
    for option in (
        click.option(
            "--namespace", "-n", default="default", show_default=True, help="Where a bare name is looked for."
        ),
        click.option("--context", help="Context of the kubeconfig; else its current one."),
        click.option("--kubeconfig", help="Else $KUBECONFIG, ~/.kube/config, or the pod's own account."),
    ):
        command = option(command)
    return command


@contextlib.contextmanager
def needs_cluster(command: str) -> Iterator[None]:
    """Say which packages a command lacks that are not installed with the bare program."""
    try:
        yield
    except ModuleNotFoundError as error:
        step = "in a clone: pip install '.[agent]'"
        raise UsageError(
            f"partage {command}", f"package {error.name} is not there", "it asks a cluster", step
        ) from error
