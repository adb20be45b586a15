"""Imported first by the fork server: it does not outlive its launcher."""

from gradwire.core.launchers.environment import die_with_parent

die_with_parent()
