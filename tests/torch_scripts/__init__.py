from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def at(file: str, text: str) -> str:
    """The place of a line of a script, as messages name it."""
    lines = (SCRIPTS / file).read_text().splitlines()
    return f"{file}:{1 + next(i for i, line in enumerate(lines) if text in line)}"
