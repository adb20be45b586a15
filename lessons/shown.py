"""Text and a picture, as a notebook's cell shows them."""

import base64
import html
from dataclasses import dataclass

from matplotlib.figure import Figure

from lessons.report import picture_bytes


@dataclass(frozen=True, repr=False)
class Shown:
    """Lines of text, and below them a picture, which `about` describes for who does not see it."""

    text: str
    picture: Figure
    about: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        data = base64.b64encode(picture_bytes(self.picture, "png")).decode()
        image = f'<img alt="{html.escape(self.about)}" style="max-width:100%" src="data:image/png;base64,{data}">'
        return f"<pre>{html.escape(self.text)}</pre>{image}"
