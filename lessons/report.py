"""The report on a student's functions: the verdict, the score, the picture; for people and for programs."""

import base64
import html
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lessons.lab import Figure, Lab, Run, counted

if TYPE_CHECKING:  # what draws loads it: a verdict needs none
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

FOR_RIGHT = 60  # points; the figures of the score share the rest
_MOST = 200  # messages that are drawn of a run
_LABELLED = 60  # a run of no more has the label of each message beside its arrow
_LABELLED_LONG = 20  # the same, where labels are words that a legend or the axis can tell
_COLOURS = ("#3b6ea5", "#d9903d", "#5a9e6f", "#8c6bb1", "#b3565f", "#4f8f97", "#8a7a4d", "#6b6b6b")


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict on one student's functions.

    `kind` is "right", "costly" (right, and some figure is not the best known) or the kind of a Fault: import, missing,
    hole, raised, loop, died, deadlock, unread, unreleased, damage, returned, wrong, orders, real, or one of
    the lab's own. Of the grading of a class: absent, link, limit, failed.
    """

    lab: Lab
    kind: str
    verdict: str
    figures: tuple[Figure, ...] = ()
    yours: Run | None = None  # what the picture shows
    reference: Run | None = None
    printed: str = ""
    right_functions: tuple[str, ...] = ()  # of a wrong lab
    parts: Mapping[str, float] = field(default_factory=dict)  # what else is right: its share of the points for results

    @property
    def right(self) -> bool:
        """Whether every result was right, in every case, on real processes too."""
        return self.kind in ("right", "costly")

    @property
    def passed(self) -> bool:
        """Whether it is right, and no figure is worse than the best known."""
        return self.kind == "right"

    @property
    def points(self) -> int:
        """0 to 100: those for results and, if all are right, the rest in equal parts for each figure at the best."""
        if not self.right:
            return self.for_results
        met = sum(figure.is_best for figure in self.figures)
        return self.for_results + round((100 - FOR_RIGHT) * met / len(self.figures))

    @property
    def for_results(self) -> int:
        """Of the points 60 if all results are right, else the share of the functions, and of their parts, that are."""
        if self.right and not self.parts:
            return FOR_RIGHT
        share = len(self.right_functions) / len(self.lab.functions) + sum(self.parts.values())
        return int(FOR_RIGHT * share + 1e-6)

    @cached_property
    def picture(self) -> "Picture | None":
        """The schedule of the student's messages beside the reference's; None where nothing was sent."""
        if self.yours is None or self.reference is None or not self.yours.sent:
            return None
        if self.yours.lanes:
            from lessons.lanes import draw_lanes  # which loads matplotlib

            return draw_lanes(self.yours, self.reference)
        return draw(self.lab, self.yours, self.reference)

    # For people

    def __repr__(self) -> str:
        lines = [f"{self.lab.name}: {self.verdict}", *self._rows(), f"points: {self.points} of 100{self._for}"]
        if self.printed:  # first, so that nothing can follow the verdict
            lines = [*self.printed.splitlines(), "", *lines]
        return "\n".join(lines)

    @property
    def _for(self) -> str:
        what = () if self.right else (*self.right_functions, *self.parts)
        return f", for {', '.join(what)}" if what else ""

    def _rows(self) -> list[str]:
        if not self.figures:
            return []
        rows = [(figure.name, shown(figure.yours), shown(figure.best), figure.formula) for figure in self.figures]
        rows = [("", "yours", "best known", ""), *rows]
        a, b, c = (max(len(row[i]) for row in rows) for i in range(3))
        lines = [f"{name:{a}}  {yours:>{b}}  {best:>{c}}  {formula}".rstrip() for name, yours, best, formula in rows]
        return [*lines, f"({self.lab.scored}, at 1 Gbit/s and 50 us)"]

    def _repr_html_(self) -> str:
        colour = "#2a7d46" if self.passed else "#a76a00" if self.right else "#b3261e"
        word = "right" if self.passed else "right, but not the best" if self.right else "not yet"
        verdict = html.escape(self.verdict).replace("\n", "<br>")
        head = f'<p><b style="color:{colour}">{word}, {self.points} of 100 points{self._for}.</b> {verdict}</p>'
        parts = [head, *(f"<pre>{html.escape(text)}</pre>" for text in ("\n".join(self._rows()), self.printed) if text)]
        if self.picture is not None:
            if self.kind == "wrong" and self._schedule(self.yours) == self._schedule(self.reference):
                parts.append("<p>Who sends what to whom is as in the reference: look at what is computed.</p>")
            about = f"The messages of your {self.lab.name} above, those of the reference below."
            parts.append(as_html(self.picture, about))
        return "".join(parts)

    def _schedule(self, run: Run | None) -> list[tuple[int, int, int, str, int]]:
        """Return what the picture shows of a run but its times."""
        assert run is not None, "else there is no picture"
        return sorted(
            (message.rank, message.step, message.dst, self.lab.label(message, run.case), message.nbytes)
            for message in run.sent
        )

    # For programs

    def as_json(self) -> str:
        """Return the scores as JSON."""
        facts = {
            "lab": self.lab.name, "kind": self.kind, "verdict": self.verdict, "right": self.right,
            "passed": self.passed, "points": self.points, "case": str(self.lab.scored),
            "right_functions": self.right_functions, "parts": self.parts,
            "figures": [asdict(figure) | {"is_best": figure.is_best} for figure in self.figures],
        }  # fmt: skip
        return json.dumps(facts, indent=1) + "\n"

    def as_gradescope(self) -> str:
        """Return the results.json that Gradescope reads: https://gradescope-autograders.readthedocs.io/en/latest/specs/."""

        def test(name: str, passed: bool, most: float, output: str) -> dict[str, Any]:
            return {"name": name, "score": most if passed else 0, "max_score": most,
                    "status": "passed" if passed else "failed", "output": output}  # fmt: skip

        left = 100 - FOR_RIGHT
        tests = [test("right", self.right, FOR_RIGHT, self.verdict)]
        tests[0]["score"] = self.for_results
        if self.right:
            tests += [test(figure.name, figure.is_best, left / len(self.figures),
                           f"yours {shown(figure.yours)}, best known {shown(figure.best)} = {figure.formula}")
                      for figure in self.figures]  # fmt: skip
        else:
            text = "counted when the results are right"
            tests.append({"name": "cost", "score": 0, "max_score": left, "output": text})
        return json.dumps({"score": self.points, "output": str(self), "tests": tests}, indent=1) + "\n"


def shown(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


# Pictures


@dataclass(frozen=True, repr=False)
class Shown:
    """Lines of text, and below them a picture, which `about` describes for those who cannot see it."""

    text: str
    picture: "Picture"
    about: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>{as_html(self.picture, self.about)}"


def as_html(figure: "Picture", about: str) -> str:
    """Return a figure as an image of HTML, with its description."""
    data = base64.b64encode(picture_bytes(figure, "png")).decode()
    return f'<img alt="{html.escape(about)}" style="max-width:100%" src="data:image/png;base64,{data}">'


def picture_bytes(figure: "Picture", kind: str) -> bytes:
    """Return a figure as a file of this kind: png, svg, pdf."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=110)
    return file.getvalue()


def new_picture(**properties: Any) -> "tuple[Picture, Axes]":
    """Return a figure, and its axes with these properties."""
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(9, 3.4), layout="constrained")
    axes = picture.subplots()
    axes.set(**properties)
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes


def draw(lab: Lab, yours: Run, reference: Run) -> "Picture":
    """Return a figure of two runs of one case on one clock, that of the longer one."""
    from matplotlib.figure import Figure as Picture
    from matplotlib.lines import Line2D

    figure = Picture(figsize=(10, 0.9 + 2 * (0.9 + 0.55 * yours.case.n)), layout="constrained")
    # One colour for each label, in the order in which the reference sends.
    labels = dict.fromkeys(lab.label(message, run.case) for run in (reference, yours) for message in run.sent[:_MOST])
    colours = {label: _COLOURS[i % len(_COLOURS)] for i, label in enumerate(labels)}
    are_short = all(len(label.removeprefix("chunk ")) <= 3 for label in labels)
    most = _LABELLED if len(labels) > 1 and (are_short or len(labels) > len(_COLOURS)) else _LABELLED_LONG
    latest = 0.0
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, run in zip(panels, ("yours", "reference"), (yours, reference), strict=True):
        drawn = run.sent[:_MOST]
        for message in drawn:
            label = lab.label(message, run.case)
            colour, line = colours[label], "--" if message.arrived is None else "-"
            # One that never arrived ends where it would have.
            begin, end = 1000 * message.sent, 1000 * (message.arrived or message.sent + 1e-4)
            latest = max(latest, end)
            arrow = {"arrowstyle": "-|>", "lw": 1.6, "shrinkA": 0, "shrinkB": 0, "color": colour, "linestyle": line}
            axes.annotate("", (end, message.dst), (begin, message.rank), arrowprops=arrow)
            if len(drawn) <= most:
                # Near its beginning, where arrows that cross are apart.
                x, y = begin + 0.2 * (end - begin), message.rank + 0.2 * (message.dst - message.rank)
                box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": colour, "lw": 0.6}
                axes.text(x, y, label.removeprefix("chunk "), fontsize=8, ha="center", va="center", color=colour,
                          parse_math=False, bbox=box)  # fmt: skip
        left_out = f", of which {_MOST} are drawn" if len(run.sent) > _MOST else ""
        of_all = f"{counted(len(run.sent), 'message')}{left_out}, {counted(run.rounds, 'round')} in the whole run"
        legend = "; dashed: sent, never received" if any(message.arrived is None for message in drawn) else ""
        axes.set_title(f"{name}: {of_all}{legend}", loc="left", fontsize=10)
        axes.set(ylim=(run.case.n - 0.5, -0.5))
        axes.set_yticks(range(run.case.n), [f"rank {rank}" for rank in range(run.case.n)])
        axes.grid(axis="y", color="#dddddd")
        axes.spines[["top", "right", "left"]].set_visible(False)
    if 1 < len(labels) <= len(_COLOURS) and max(len(yours.sent), len(reference.sent)) > most:  # arrows without labels
        handles = [Line2D([], [], color=colour, label=label) for label, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
    panels[-1].set_xlim(-0.02 * latest, 1.02 * max(latest, 1e-3))
    chunks = "; numbers are chunks where a message carries one" if any("chunk" in label for label in labels) else ""
    alike = f"; each arrow carries {label}" if len(labels) == 1 else ""
    panels[-1].set_xlabel(f"virtual milliseconds ({yours.case}){chunks}{alike}", parse_math=False)
    return figure
