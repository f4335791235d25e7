"""One style for all figures of the book.

White, opaque backgrounds (a dark page puts them in a white frame), colours that colour-blind readers can tell apart
(Okabe & Ito 2008), each with a line style of its own so that they survive grey printing, and letters that are still
readable when the figure is as wide as a phone.
"""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Grows lighter all the way, so that the order can be seen in grey; in steps, which also keeps noisy pictures small.
COLOUR_MAP = plt.get_cmap("cividis", 20)
WIDTH = 6.0  # inches


def use_style() -> None:
    """Make this style the default of the figures that follow."""
    plt.rcParams.update(
        {
            "figure.dpi": 150,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "savefig.transparent": False,
            "font.size": 11,
            "axes.prop_cycle": plt.cycler(color=COLOURS, linestyle=LINES),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
        }
    )


def figure(rows: int = 1, columns: int = 1, height: float = 3.4, **options: Any) -> Axes | np.ndarray:
    """Begin a figure as wide as the page.

    Args:
        rows, columns: of panels.
        height: in inches.
        options: go to `matplotlib.pyplot.subplots`.

    Returns:
        The axes, or an array of them.
    """
    return plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", **options)[1]
