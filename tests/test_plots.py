"""The figure contract: opaque white, large enough, and lines that differ in more than colour."""

import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from nlm_core.plots import COLOURS, LINES, figure, use_style


@pytest.fixture(autouse=True)
def style():
    matplotlib.use("agg")
    with matplotlib.rc_context():
        use_style()
        yield
    matplotlib.pyplot.close("all")


def test_figures_are_opaque_white_and_wide_enough():
    axes = figure(1, 2, height=2.0)
    assert axes.shape == (2,)
    file = io.BytesIO()
    axes[0].figure.savefig(file, format="png")
    picture = np.asarray(Image.open(file).convert("RGBA"))
    assert picture.shape[1] >= 900
    assert (picture[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


def test_no_two_lines_share_colour_or_style():
    ax = figure()
    assert len({ax.plot([0, 1])[0].get_color() for _ in COLOURS}) == len(COLOURS)
    assert len({str(style) for style in LINES}) == len(COLOURS) == 7
