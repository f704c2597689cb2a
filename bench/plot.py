"""The picture of bench/shares.py --plot: what share two tenants have over time while 30/70 becomes 60/40.

Drawn with matplotlib (dependency group `bench`) from the simulated engine's own busy time, in half-second means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenants import BenchError, shares_between

if TYPE_CHECKING:
    from pathlib import Path

    from tenants import Look

WINDOW: Final = 10  # looks, half a second
COLOURS: Final = ("#0b6e4f", "#c8553d")
NS: Final = 1e9


def series(samples: list[Look]) -> tuple[list[float], list[list[float]]]:
    """Return seconds since the first look, and percent of the card per tenant, each the mean of the window before."""
    pairs = list(zip(samples, samples[WINDOW:], strict=False))
    times = [(after.at - samples[0].at) / NS for _, after in pairs]
    shares = [shares_between(before, after) for before, after in pairs]
    return times, [list(column) for column in zip(*shares, strict=True)]


def draw(samples: list[Look], changed_at: int, asked: tuple[tuple[float, float], ...], path: Path) -> None:
    """Write the PNG. `changed_at`: CLOCK_MONOTONIC ns; `asked`: percent before and after, per tenant."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 -- only a picture needs it

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError as error:
        raise BenchError(f"no picture without matplotlib ({error}): pip install matplotlib") from error
    times, shares = series(samples)
    change, end = (changed_at - samples[0].at) / NS, times[-1]
    figure, axes = plt.subplots(figsize=(9, 4), dpi=120)
    for number, ((before, after), colour) in enumerate(zip(asked, COLOURS, strict=True)):
        axes.plot(
            [0, change, change, end], [before, before, after, after], color=colour, linewidth=1, linestyle=(0, (4, 3))
        )
        axes.plot(
            times, shares[number], color=colour, linewidth=2, label=f"tenant {number + 1}: {before:g} % -> {after:g} %"
        )
    axes.axvline(change, color="#888888", linewidth=1)
    axes.annotate(
        "partage resize", (change, 96), xytext=(6, 0), textcoords="offset points", color="#555555", va="center"
    )
    axes.set(xlim=(0, end), ylim=(0, 100), xlabel="seconds", ylabel="% of the card's time")
    axes.set_title("Two tenants on one simulated card: got (lines, means of 0.5 s) and asked (dashed)", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
