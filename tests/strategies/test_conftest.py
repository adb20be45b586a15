"""The option with which the suites of all strategies are those of one, also of a class of a user's own."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.compression import CODECS, PowerSGD
from strategies import STRATEGIES
from tests.selection import keep_those_of
from tests.strategies import conftest
from tests.strategies.test_every_strategy import test_it_takes_the_same_steps_as_one_process as same_steps

OWN = '''
from dataclasses import dataclass
from strategies.all_reduce.ring_all_reduce import RingAllReduce

@dataclass(kw_only=True)
class Forgetful(RingAllReduce):
    """The ring, but each worker has the weight of one, whatever its samples."""

    def step(self, n_samples: int) -> None:
        g = self.replica.collect()
        self.descent.step(g.div_(self.all_reduce(g, 1)), n_samples)
'''


class Item(SimpleNamespace):
    """What the selection looks at of a test."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def config_of(name: str) -> Any:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    return SimpleNamespace(getoption=lambda option: name if option == "strategy" else None, hook=hook)


def test_the_suites_get_the_class_of_a_users_own_and_find_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mymodule.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    made: list[Any] = []
    conftest.pytest_generate_tests(SimpleNamespace(  # type: ignore[arg-type]
        config=config_of("mymodule:Forgetful"), fixturenames=["synchronous", "n_gpus"],
        parametrize=lambda names, cases: made.extend(case.values for case in cases),
    ))  # fmt: skip
    assert made == [(sys.modules["mymodule"].Forgetful, n) for n in (1, 2, 3, 4)]
    with pytest.raises(AssertionError, match="not those of one process"):
        same_steps(*made[2])


def test_kept_are_those_with_its_name_or_class_of_its_source_of_its_file_and_of_the_whole_table() -> None:
    kind, other = STRATEGIES["sharded_ring"], STRATEGIES["gossip"]
    folder = Path(__file__).parent

    def item(*params: Any, file: str = "test_other.py", mark: str = "") -> Any:
        callspec = SimpleNamespace(params=dict(enumerate(params)))
        return Item(path=folder / file, callspec=callspec, get_closest_marker=lambda name: name == mark)

    wanted = [
        item(kind), item(kind(), 3), item("sharded_ring"), item(("fp16", [kind])), item(file="test_sharded_ring.py"),
        item("strategies/all_reduce/sharded_ring.py"), item(mark="of_every_strategy"),
    ]  # fmt: skip
    items = [item(other), *wanted, item("gossip"), item(other()), item()]
    keep_those_of(kind, config_of(""), items)
    assert items == wanted


def test_of_a_codec_kept_are_those_with_it_and_of_its_file() -> None:
    kind, folder = PowerSGD, Path(__file__).parent.parent / "compression"

    def item(*params: Any, file: str = "test_other.py") -> Any:
        callspec = SimpleNamespace(params=dict(enumerate(params)))
        return Item(path=folder / file, callspec=callspec, get_closest_marker=lambda name: None)

    wanted = [item(kind), item(STRATEGIES["gossip"], kind()), item("powersgd"), item(file="test_powersgd.py")]
    items = [item(CODECS["qsgd"]()), *wanted, item("topk"), item()]
    keep_those_of(kind, config_of(""), items)
    assert items == wanted
