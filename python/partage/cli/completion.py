"""`partage completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, e.g. `eval "$(partage completion bash)"`."""
    kind = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert kind is not None  # noqa: S101 -- the choices above are click's own
    click.echo(kind(root, {}, "partage", "_PARTAGE_COMPLETE").source())
