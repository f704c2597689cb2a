"""`partage simulate -f FILE`: where the pods of a file would go, without creating anything."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click

from partage.cli.cluster_options import cluster_options, config_option, needs_cluster
from partage.cli.exit_codes import ExitCode
from partage.cli.explain import show, tell_note
from partage.cli.simulating import place_all

if TYPE_CHECKING:
    from pathlib import Path

    from partage.cli.explaining import Explanation


@click.command(short_help="Say where the pods of a file would go.")
@click.option("--filename", "-f", "file", type=click.File("rb"), required=True, help="YAML or JSON; - is stdin.")
@cluster_options
@config_option
@click.option("--nodes", default=1, show_default=True, help="Of so many nodes, the best first, every card is shown.")
@click.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="Text, or all of it as JSON.")
def simulate(  # noqa: PLR0913 -- one parameter an option
    *,
    file: IO[bytes],
    kubeconfig: str | None,
    context: str | None,
    namespace: str,
    config: Path | None,
    nodes: int,
    output: str,
) -> int:
    """Place the pods of FILE one after the other on the cluster as it is now, and say where or why not.

    Pods, and the pods of Deployments, StatefulSets, ReplicaSets, Jobs and CronJobs, in the order of the file; other
    objects are passed over, with a note where they make pods. Nothing is created. Ends with 3 where one does not fit,
    with 2 where one has no meaning.
    """
    with needs_cluster("simulate"):
        from partage.cli.cluster import read_cluster  # noqa: PLC0415 -- their packages may not be there
        from partage.cli.manifests import pods_of, unread  # noqa: PLC0415
    text, name = file.read(), getattr(file, "name", "stdin")
    pods = pods_of(text, name, namespace)
    others = unread(text, name)
    if others:
        click.echo(f"note: passed over, though they make pods: {', '.join(others)}", err=True)
    look = read_cluster(kubeconfig, context, config)
    tell_note(look)
    said = place_all(look, pods)
    show(said, nodes=nodes, output=output)
    return _code(said)


def _code(said: list[Explanation]) -> int:
    states = {one.state for one in said}
    if "invalid" in states:
        return ExitCode.USAGE
    return ExitCode.REFUSED if "pending" in states else ExitCode.OK
