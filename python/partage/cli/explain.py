"""`partage explain pod`: why a pod waits, per node and per card, and what would make it fit; changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import msgspec

from partage.cli.cluster_options import cluster_options, config_option, needs_cluster
from partage.cli.explaining import explain_pod, lines

if TYPE_CHECKING:
    from pathlib import Path

    from partage.cli.cluster import ClusterLook
    from partage.cli.explaining import Explanation

NODES: Final = 5


@click.group(short_help="Say why a pod of the cluster is not placed.")
def explain() -> None:
    """Say why things are as they are in the cluster; reads the API server and changes nothing."""


@explain.command(short_help="Say why a pod waits, and what would make it fit.")
@click.argument("pod", metavar="[NAMESPACE/]NAME")
@cluster_options
@config_option
@click.option(
    "--nodes", default=NODES, show_default=True, help="Of so many nodes, the best first, every card is shown."
)
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="Text, or all of it as JSON.")
def pod(  # noqa: PLR0913 -- one parameter an option
    pod: str,
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    config: Path | None,
    nodes: int,
    output: str,
) -> None:
    """Say where the pod NAME is placed, or which nodes and cards refuse it for what, and what would be enough.

    The same functions decide here as in the scheduler, on what the API server has now. Each suggestion was tried.
    """
    with needs_cluster("explain"):
        from partage.cli.cluster import read_cluster  # noqa: PLC0415 -- its packages may not be there
    where, _, name = pod.rpartition("/")
    look = read_cluster(kubeconfig, context, config)
    tell_note(look)
    show([explain_pod(look, look.pod(where or namespace, name))], nodes=nodes, output=output)


def tell_note(look: ClusterLook) -> None:
    """Say on standard error where pods are not read as an administrator decided, since that was not to be found."""
    if look.ask.note:
        click.echo(f"note: {look.ask.note}", err=True)


def show(said: list[Explanation], *, nodes: int, output: str) -> None:
    """Print explanations; as JSON one alone is an object, several are a list."""
    if output == "json":
        whole = msgspec.json.encode(said[0] if len(said) == 1 else said)
        click.echo(msgspec.json.format(whole, indent=2).decode())
        return
    for one in said:
        for line in lines(one, nodes=nodes):
            click.echo(line)
