"""The report on a student's functions: the verdict, the score, the picture; for people and for programs."""

import html
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from matplotlib.figure import Figure as Picture

from lessons import picture
from lessons.lab import Figure, Lab, Run

FOR_RIGHT = 60  # points; what is left is shared by the figures of the score


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict on one student's functions.

    `kind` is "right", "costly" (right, and some figure is not the best known) or the kind of a Fault: import, missing,
    hole, raised, loop, died, deadlock, unread, unreleased, damage, returned, wrong, orders, real, or one of
    the lab's own.
    """

    lab: Lab
    kind: str
    verdict: str
    figures: tuple[Figure, ...] = ()
    yours: Run | None = None  # what the picture shows
    reference: Run | None = None
    printed: str = ""

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
        """0 to 100: 60 if all results are right, and the rest in equal parts for each figure at the best known."""
        if not self.right:
            return 0
        met = sum(one.is_best for one in self.figures)
        return FOR_RIGHT + round((100 - FOR_RIGHT) * met / len(self.figures))

    @cached_property
    def picture(self) -> Picture | None:
        """The schedule of the student's messages beside the reference's; None where nothing was sent."""
        if self.yours is None or self.reference is None or not self.yours.sent:
            return None
        return picture.draw(self.lab, self.yours, self.reference)

    # For people

    def __repr__(self) -> str:
        lines = [f"{self.lab.name}: {self.verdict}", *self._rows(), f"points: {self.points} of 100"]
        if self.printed:  # first, so that nothing can follow the verdict
            lines = [*self.printed.splitlines(), "", *lines]
        return "\n".join(lines)

    def _rows(self) -> list[str]:
        if not self.figures:
            return []
        rows = [(one.name, shown(one.yours), shown(one.best), one.formula) for one in self.figures]
        rows = [("", "yours", "best known", ""), *rows]
        a, b, c = (max(len(row[i]) for row in rows) for i in range(3))
        lines = [f"{name:{a}}  {yours:>{b}}  {best:>{c}}  {formula}".rstrip() for name, yours, best, formula in rows]
        return [*lines, f"({self.lab.scored}, at 1 Gbit/s and 50 us)"]

    def _repr_html_(self) -> str:
        colour = "#2a7d46" if self.passed else "#a76a00" if self.right else "#b3261e"
        word = "right" if self.passed else "right, but not the best" if self.right else "not yet"
        verdict = html.escape(self.verdict).replace("\n", "<br>")
        head = f'<p><b style="color:{colour}">{word}, {self.points} of 100 points.</b> {verdict}</p>'
        parts = [head, *(f"<pre>{html.escape(text)}</pre>" for text in ("\n".join(self._rows()), self.printed) if text)]
        if self.picture is not None:
            if self.kind == "wrong" and self._schedule(self.yours) == self._schedule(self.reference):
                parts.append("<p>Who sends what to whom is as in the reference: look at what is computed.</p>")
            about = f"The messages of your {self.lab.name} above, those of the reference below."
            parts.append(picture.as_html(self.picture, about))
        return "".join(parts)

    def _schedule(self, run: Run | None) -> list[tuple[int, int, int, str, int]]:
        """Return what the picture shows of a run but its times."""
        assert run is not None, "else there is no picture"
        return sorted((one.rank, one.step, one.dst, self.lab.label(one, run.case), one.nbytes) for one in run.sent)

    # For programs

    def as_json(self) -> str:
        """Return the scores as JSON."""
        facts = {
            "lab": self.lab.name, "kind": self.kind, "verdict": self.verdict, "right": self.right,
            "passed": self.passed, "points": self.points, "case": str(self.lab.scored),
            "figures": [asdict(one) | {"is_best": one.is_best} for one in self.figures],
        }  # fmt: skip
        return json.dumps(facts, indent=1) + "\n"

    def as_gradescope(self) -> str:
        """Return the results.json that Gradescope reads: https://gradescope-autograders.readthedocs.io/en/latest/specs/."""

        def test(name: str, passed: bool, most: float, output: str) -> dict[str, Any]:
            return {"name": name, "score": most if passed else 0, "max_score": most,
                    "status": "passed" if passed else "failed", "output": output}  # fmt: skip

        left = 100 - FOR_RIGHT
        tests = [test("right", self.right, FOR_RIGHT, self.verdict)]
        if self.right:
            tests += [test(one.name, one.is_best, left / len(self.figures),
                           f"yours {shown(one.yours)}, best known {shown(one.best)} = {one.formula}")
                      for one in self.figures]  # fmt: skip
        else:
            text = "counted when the results are right"
            tests.append({"name": "cost", "score": 0, "max_score": left, "output": text})
        return json.dumps({"score": self.points, "output": str(self), "tests": tests}, indent=1) + "\n"


def shown(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
