"""`partage forget`: takes off the cluster's nodes what agents wrote there, when the product is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from partage.cli.cluster_options import needs_cluster

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig


@click.command(short_help="Take off the nodes what agents wrote there.")
@click.option("--kubeconfig", help="Else $KUBECONFIG, ~/.kube/config, or the pod's own account.")
@click.option("--context", help="Context of the kubeconfig; else its current one.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def forget(*, kubeconfig: str | None, context: str | None, dry_run: bool) -> None:
    """Remove the annotations and labels that agents wrote onto nodes, after the chart was uninstalled.

    What another program wrote too, as NVIDIA's feature discovery may, stays.
    """
    with needs_cluster("forget"):
        from partage.kube import load_config  # noqa: PLC0415 -- its packages may not be there
    said = asyncio.run(_forget(load_config(kubeconfig, context), dry_run=dry_run))
    click.echo("\n".join(said) or "no node has anything of an agent")


async def _forget(config: SingleConfig, *, dry_run: bool) -> list[str]:
    from lightkube.resources.core_v1 import Node  # noqa: PLC0415

    from partage.kube import Client  # noqa: PLC0415
    from partage.kube.traces import forget as take_off  # noqa: PLC0415
    from partage.kube.traces import traces_on  # noqa: PLC0415

    said: list[str] = []
    async with Client.connect(config, manager="partage-cli") as client:
        for node in (await client.list(Node)).items:
            found = traces_on(node)
            if not (found.annotations or found.labels):
                continue
            if not dry_run:
                await take_off(client, found)
            said.append(f"{found.node}: {', '.join((*found.annotations, *found.labels))}")
    return said
