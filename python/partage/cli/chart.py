"""`partage chart`: values for the Helm chart, made of those of another one."""

from __future__ import annotations

from typing import IO, Any

import click
import msgspec

from partage.cli.hami_values import translate
from partage.model import UsageError


@click.group(short_help="Values for the Helm chart.")
def chart() -> None:
    """Make values for the Helm chart."""


@chart.command(short_help="Translate HAMi's values.")
@click.option("--from-hami", "source", type=click.File("rb"), required=True, help="HAMi's values.yaml; - for stdin.")
def values(source: IO[bytes]) -> None:
    """Print the values that mean for our chart what a file of HAMi's chart means.

    What has no counterpart is told on standard error, one line a key, with what to do instead.
    """
    found = translate(_document(source))
    for note in found.notes:
        click.echo(note, err=True)
    click.echo(msgspec.yaml.encode(found.values, order="sorted").decode(), nl=False)


def _document(source: IO[bytes]) -> dict[str, Any]:
    try:
        document = msgspec.yaml.decode(source.read())
    except (msgspec.DecodeError, UnicodeError) as error:
        why = " ".join(str(error).split())
        raise UsageError(source.name, f"cannot be read ({why})", "a YAML mapping", "correct it") from error
    except ImportError as error:
        raise UsageError("PyYAML", "is not installed", "values are YAML", "pip install pyyaml") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(source.name, f"a {type(document).__name__}", "a YAML mapping", "name HAMi's values.yaml")
    return document
