"""Write into docs/design.md which file calls which, from the command to the first message of a strategy.

python -m docs.calls

A real run is traced: its first process until it starts a rank, and a rank until a strategy's message is written.
"""

import os
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "design.md"
BEGIN, END = "<!-- calls: made by python -m docs.calls -->\n", "<!-- end of calls -->\n"
RUN = "gradwire train --strategy ring_all_reduce --n_gpus 2 --epochs 1".split()
_LIMIT_S = 300
_TRACER = '''
import os, sys

def look(frame, event, arg):
    """Keep the calls that led here, where a process starts the first rank, or a rank writes a strategy's message."""
    code, name = frame.f_code, None
    if event == "call" and code.co_name == "start" and code.co_filename.endswith("multiprocessing/process.py"):
        name = "first"
    elif event == "c_call" and getattr(arg, "__name__", "") == "write":
        name = "rank"
    if name is None:
        return
    calls = []
    while frame:
        calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))
        frame = frame.f_back
    project, out = os.environ["TRACED_PROJECT"], os.environ["TRACED_OUT"]
    own = [(file[len(project) + 1:], function) for file, function in reversed(calls) if file.startswith(project)]
    if not own or (name == "rank" and not any(file.startswith("strategies/") for file, _ in own)):
        return
    sys.setprofile(None)
    try:
        with open(os.path.join(out, name), "x") as kept:
            kept.writelines(f"{file}\\t{function}\\n" for file, function in own)
    except FileExistsError:
        pass

sys.setprofile(look)
'''


def trace() -> list[list[tuple[str, str]]]:
    """Return the calls, as file and function, of the first process and of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(_TRACER)
        given = {"PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}", "TRACED_PROJECT": str(PROJECT), "TRACED_OUT": folder}
        command = [sys.executable, "-m", *RUN, "--results_dir", folder]
        subprocess.run(command, cwd=PROJECT, env=os.environ | given, check=True, capture_output=True, timeout=_LIMIT_S)
        return [
            [tuple(line.split("\t")) for line in (Path(folder) / name).read_text().splitlines()]  # type: ignore[misc]
            for name in ("first", "rank")
        ]


def picture(parts: list[list[tuple[str, str]]]) -> str:
    """Return the calls as text, one file a line, with its functions that call one another."""
    lines = ["python -m " + " ".join(RUN)]
    for title, calls in zip(("The first process:", "Each rank, a process of its own:"), parts, strict=True):
        lines += ["", title]
        for file, functions in groupby(calls, key=lambda call: call[0]):
            names = (function.replace(".<locals>", "") for _, function in functions)
            lines.append(f"  {file:<44} {', '.join(names)}")
    return "\n".join(lines)


def with_picture(page: str, text: str) -> str:
    """Return the page with this picture between its two marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n```text\n{text}\n```\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8"), picture(trace())), encoding="utf-8")
