"""Pictures, and text above them, as a notebook's cell shows them."""

import base64
import html
import io
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Shown:
    """Lines of text, and below them a picture, which `about` describes for those who cannot see it."""

    text: str
    picture: Figure
    about: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>{as_html(self.picture, self.about)}"


def as_html(figure: Figure, about: str) -> str:
    """Return a figure as an image of HTML, with its description."""
    data = base64.b64encode(picture_bytes(figure, "png")).decode()
    return f'<img alt="{html.escape(about)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def picture_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of this kind: png, svg, pdf."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=110)
    return file.getvalue()


def new_picture(**properties: Any) -> tuple[Figure, Axes]:
    """Return a figure, and its axes with these properties."""
    picture = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    axes.set(**properties)
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes
