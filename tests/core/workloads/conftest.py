"""What the tests of several files use."""

from tests.images.conftest import folder as folder
