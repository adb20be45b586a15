"""A process that does not outlive its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.ranks import wait_until

ROOT = Path(__file__).parents[2]
CHILD = """
import os, signal
from launchers.parent import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_stopped_process_does_not_outlive_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert wait_until(lambda: child.status() == psutil.STATUS_STOPPED, 60)
            parent.kill()
            assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 60)
        finally:
            parent.kill()
            if child.is_running():
                child.kill()
