"""Lossless: the gradient arrives as it is."""

from tests.compression.plain.none import plain_program as plain_program
