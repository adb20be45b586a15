"""Write a lab's autograder for Gradescope: python -m lessons.autograder ring

Writes the folder autograder_ring, and autograder_ring.zip, which is to be uploaded. What is in it is as in
https://gradescope-autograders.readthedocs.io/en/latest/specs/.
"""

import sys

if __name__ == "__main__":
    from gradwire.ending import end_while_loading
    from lessons.early import refuse, require_lab

    refuse(require_lab)
    end_while_loading("nothing was written")  # what follows takes seconds to load

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from lessons.check import find_lab
from lessons.release import copy_course, write_folder

SETUP = """#!/usr/bin/env bash
set -e
cd "$(dirname "$0")"
apt-get update
apt-get install -y python3.11-venv || apt-get install -y python3-venv  # Ubuntu 22.04's own Python is too old
"$(command -v python3.11 || command -v python3)" -m venv venv
venv/bin/pip install -c course/constraints.txt torch torchvision --index-url https://download.pytorch.org/whl/cpu
venv/bin/pip install -c course/constraints.txt -r course/requirements.txt
"""
RUN = """#!/usr/bin/env bash
cd source/course  # it is run in /autograder
../venv/bin/python -m lessons.check {} ../../submission --gradescope ../../results/results.json || [ $? = 1 ]
"""


@dataclass(frozen=True)
class Settings:
    """Whose autograder it is."""

    lab: Annotated[str, Positional, arg(metavar="LAB")]
    """The lab's name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write an autograder; return 0, 2 after bad usage, 128 + signal."""

    def work() -> None:
        lab = find_lab(parse(sys.argv[1:] if arguments is None else arguments, Settings, __doc__ or "").lab).name

        def write(folder: Path) -> None:
            copy_course(folder / "course")
            for name, text in (("setup.sh", SETUP), ("run_autograder", RUN.format(lab))):
                (folder / name).write_text(text, encoding="utf-8")
                (folder / name).chmod(0o755)

        write_folder(f"autograder_{lab}", write)
        print(f"{shutil.make_archive(f'autograder_{lab}', 'zip', f'autograder_{lab}')}: upload it as the autograder")

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
