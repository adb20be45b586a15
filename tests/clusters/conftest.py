"""Fixtures of the launchers' tests, which clusters need too."""

from tests.core.launchers.conftest import start as start
