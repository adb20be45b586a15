"""Codecs that belong to one strategy: `--codec` does not offer them."""
