"""Make the text of `--dataset text`: this project's own pages and sources, as they were at one commit.

python -m gradwire.language.pack_text

The files follow each other in the order of the SHA-256 of their paths, which mixes the folders: the last tenth, which
is held out, has something of each.
"""

import hashlib
import io
import lzma
import subprocess
import tarfile

from gradwire.language.text import SHIPPED

COMMIT = "9bf87a1c8c3b78d25f9027f1b3be0447a193841d"
FILES = ("*.py", "*.md", *(f":!{folder}" for folder in ("benchmarks", "lessons", "media", "results", "tests")))


def packed() -> str:
    """Return the text, from the repository that the current directory is in."""
    archive = subprocess.run(["git", "archive", COMMIT, *FILES], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = {member.name: file.read().decode() for member in files if (file := files.extractfile(member))}
    paths = sorted(found, key=lambda path: hashlib.sha256(path.encode()).digest())
    return "\n".join(found[path] for path in paths if found[path])


if __name__ == "__main__":
    SHIPPED.write_bytes(lzma.compress(packed().encode(), preset=9 | lzma.PRESET_EXTREME))
