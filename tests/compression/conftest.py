"""Whoever is in the table of codecs is put through the suites of all; `--codec` takes one, or yourmodule:YourCodec.

A test gets each class by its argument `codec_class`, and instances with several options by one of SUITES.
"""

from collections.abc import Callable

import pytest

from gradwire.compression import CODECS, Codec, NoCodec
from tests.compression.test_all_codecs import INSTANCES
from tests.selection import chosen_codec

SUITES: dict[str, Callable[[Codec], bool]] = {
    "instance": lambda codec: True,
    "checking": lambda codec: not isinstance(codec, NoCodec),  # refuses what is not finite
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = chosen_codec(metafunc.config)
    own = chosen if chosen and chosen not in CODECS.values() else None
    if "codec_class" in metafunc.fixturenames:
        classes = [own] if own else list(CODECS.values())
        metafunc.parametrize("codec_class", classes, ids=[codec.name for codec in classes])
    for suite in set(SUITES) & set(metafunc.fixturenames):
        instances = [codec for codec in ([own()] if own else INSTANCES) if SUITES[suite](codec)]
        metafunc.parametrize(suite, instances, ids=str)
