"""Make the text of `--dataset text`: this project's own pages and sources, as they were at one commit.

python -m workloads.pack_text

Writes workloads/text.txt.xz, always the same bytes of text. The files follow each other in the order of the SHA-256 of
their paths, which mixes the rooms: the last tenth, which is held out, has something of each.
"""

import hashlib
import io
import lzma
import subprocess
import tarfile

from workloads.text import SHIPPED

COMMIT = "9bf87a1c8c3b78d25f9027f1b3be0447a193841d"
ROOMS = (
    "checkpoints", "compression", "docs", "experiments", "launchers", "records", "strategies", "training",
    "transports", "virtual_time", "workloads",
)  # fmt: skip


def packed_text() -> str:
    """Return the text, of the repository that the current directory is in."""
    archive = subprocess.run(["git", "archive", COMMIT], capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for one in files:
            room = one.name.split("/")[0]
            if one.name.endswith((".py", ".md")) and (room in ROOMS or room == one.name) and one.size:
                file = files.extractfile(one)
                assert file is not None, "it is a file by its name"
                found[one.name] = file.read().decode()
    return "\n".join(found[path] for path in sorted(found, key=lambda path: hashlib.sha256(path.encode()).digest()))


if __name__ == "__main__":
    text = packed_text()
    SHIPPED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{SHIPPED}: {len(text)} characters, {SHIPPED.stat().st_size} bytes")
