"""What an entry may do: each rule of the scoreboard, with a file that breaks it, and one line that says so."""

import ast
from pathlib import Path

import pytest
import torch

from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.scoreboard import entry, game, rules
from gradwire.scoreboard.board import digest
from gradwire.scoreboard.clusters import CLUSTERS
from strategies import STRATEGIES
from tests.runs import IN_MEMORY
from tests.selection import by_default

BEGIN = """from dataclasses import dataclass, field

import torch

from strategies import LocalSGD, RingAllReduce

OPTIONS = "--optimizer adam --lr 0.01"
KEPT = []
"""
STEP = (
    BEGIN
    + """

@dataclass(kw_only=True)
class Mine(RingAllReduce):
    def step(self, n_samples: int) -> None:
        {}
        super().step(n_samples)
"""
)
AGAIN = "\n\n    def again(self, n_samples: int) -> None:\n        pass"
SHARING = (
    BEGIN
    + """

@dataclass(kw_only=True)
class Mine(LocalSGD):
    local_steps: int = 1000
    of_object: list[int] = field(default_factory=list)
    of_class = []

    def setup(self) -> None:
        super().setup()
        self.own = self.transport.allocate(len(self.replica.x)).requires_grad_()
        for peer in self.transport.peers:
            self.transport.isend(self.own[:], peer, "once")
        self.seen = [self.transport.recv(peer, "once").tensor for peer in self.transport.peers]

    def step(self, n_samples: int) -> None:
        super().step(n_samples)
        self.own.detach().copy_(self.replica.x)
        for kept in (KEPT, self.of_object, self.of_class):
            kept.append(self.transport.rank)
        if {}:
            self.replica.x.zero_()
"""
)
NUMBER = iter(range(1000))


def entered(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> entry.Entry:
    """The entry of a file with this text, of a name that no other has."""
    monkeypatch.chdir(folder)
    name = f"entry_of_test_{next(NUMBER)}"
    (folder / f"{name}.py").write_text(text)
    return entry.find(f"{name}:Mine")


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("import os", "line 14: imports os"),
        ("from torch import distributed", "imports distributed from torch"),
        ("from strategies import STRATEGIES", "imports STRATEGIES from strategies"),
        ("from .others import shared", "imports .others"),
        ("global KEPT", "line 14: uses Global of the module ast"),
        ("open('gradwire/language/text.txt.xz')", "uses open"),
        ("self.transport.clock = 0.0", "assigns to self.transport.clock"),
        ("Mine.shared = self.replica.x", "assigns to Mine.shared"),
        ("self.transport.recorder.time_passes(0, 0)", "uses self.transport.recorder.time_passes"),
        ("self.transport.ranks.transports[1].recv(0, 'x')", "which is no part of the contract"),
        ("self.replica.module(torch.zeros(8, 32))", "uses self.replica.module"),
        ("self.__dict__['x'] = 1", "uses self.__dict__"),
        ("torch.save(self.replica.x, 'x')", "uses torch.save"),
        ("self.transport._allocated", "uses self.transport._allocated"),
        ("pass\n" + "#\n" * 150, "must have at most 150 lines of 120 characters"),
        ("learned = '" + 120 * "x" + "'", "must have at most 150 lines of 120 characters"),
        ("learned = [" + 25 * f"\n'{'x' * 90}'," + "]", "has constants of more than 2000 characters"),
        ("'{0.transport.ranks}'.format(self)", "format, which is no part of the contract"),
        ("super(Mine, self.transport).clock", "gives super() arguments"),
        ("self = self.transport", "assigns to self"),
        ("lambda self: self.clock", "an argument self that is not the object of a method"),
        ("pass\n\n    @staticmethod\n    def look(self):\n        self.clock = 0", "an argument self"),
        ("Mine.step(self.transport)", "uses Mine.step; call it of an object"),
        ("torch.nn.functional.tf32_notes['x'] = self.replica.x", "uses torch.nn.functional.tf32_notes"),
        ("self.replica.model(torch.zeros(8, 32))\n\n    def model(self):\n        pass", "uses self.replica.model"),
        ("match self.transport:\n            case object(__setattr__=put):\n                put('clock', 0.0)",
         "line 14: uses Match of the module ast"),
        ("try:\n            pass\n        except BaseException:\n            pass", "uses Try of the module ast"),
        ("hasattr(self.transport, 'clock')", "uses hasattr"),
        ("object()", "uses object"),
        ("__import__('os')", "uses __import__"),
        ("import math as __builtins__", "uses __builtins__"),
        ("pass\n\n    def __reduce__(self):\n        return str, ('x',)", "uses __reduce__"),
        ("pass\n\n    k: \"open('owned', 'w')\" = 1" + AGAIN, "has the annotation \"open('owned', 'w')\""),
        ("EVIL = \"open('owned', 'w')\"\n\n    k: EVIL = 1" + AGAIN, "has the annotation EVIL"),
        ("pass\n\n    k: print(1) = 1" + AGAIN, "has the annotation print(1)"),
        ("from strategies.all_reduce.synthesised import synthesise", "imports synthesise"),
    ],
)  # fmt: skip
def test_a_file_that_breaks_a_rule_is_refused_before_it_is_imported(
    does: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunFailed) as refused:
        entered(STEP.format(does), tmp_path, monkeypatch)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def bits(made: entry.Entry) -> str:
    return digest(game.play(made, "fast", 0, 4, 100).parameters)


@pytest.fixture(scope="module")
def bits_alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The result of ranks that do not look at what they could share."""
    with pytest.MonkeyPatch.context() as patch:
        return bits(entered(SHARING.format("False"), tmp_path_factory.mktemp("alone"), patch))


@pytest.mark.parametrize(
    "has_shared",
    [
        "len({*KEPT}) > 1",
        "len({*self.of_object}) > 1",
        "len({*self.of_class}) > 1",
        "any(one.any() for one in self.seen)",
        "self.seen[0].requires_grad",
    ],
)
def test_ranks_share_nothing_but_messages(
    has_shared: str, bits_alone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bits(entered(SHARING.format(has_shared), tmp_path, monkeypatch)) == bits_alone


def test_who_is_no_entry() -> None:
    assert set(STRATEGIES) - {*entry.ENTRIES} == {"single", "none", *IN_MEMORY}
    with pytest.raises(UsageError, match="entry hogwild: unknown"):
        entry.find("hogwild")


def test_passes_that_take_no_time_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = STEP.format("self.replica.module(torch.zeros(1, 32, dtype=torch.int64))")
    monkeypatch.setattr(entry, "check_file", lambda path: None)
    made = entered(text, tmp_path, monkeypatch)
    with pytest.raises(RunFailed, match="computed 64 forward passes, of which 32 took time"):
        game.play(made, "fast", 0, 4, 100)


SENT = """

class Tag(str):
    def with_gradient(self, g: torch.Tensor) -> str:
        self.gradient = g
        return self


class Count(int):
    pass


class Vector(torch.Tensor):
    pass
"""


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ("x, peer, Tag('x').with_gradient(self.replica.g)", "of the type Tag: must be a plain str"),
        ("x, peer, 'x', n=Count(1)", "n=1.: must be a number of samples"),
        ("x, peer, 'x', n=0.5", "n=0.5.: must be a number of samples"),
        ("x.as_subclass(Vector), peer, 'x'", "of the type Vector: send a tensor"),
        ("[Tag('x')], peer, 'x'", "of the type list: send a tensor, or plain values"),
        ("{1: (Count(1),)}, peer, 'x'", "of the type dict: send a tensor, or plain values"),
        ("x, peer, 'x' * 500_000", "sends [0-9]+ bytes of tags and numbers beside [0-9]+ of vectors, more than 2%"),
    ],
)
def test_nothing_travels_beside_what_is_counted(
    sent: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = STEP.format(f"x, peer = self.replica.x[:2], self.transport.peers[0]\n        self.transport.isend({sent})")
    with pytest.raises(RunFailed, match=says):
        game.play(entered(text + SENT, tmp_path, monkeypatch), "fast", 0, 1, 100)


def test_empty_messages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = STEP.format("[self.transport.isend(None, self.transport.peers[0], 'x', n=1) for _ in range(1_000)]")
    with pytest.raises(RunFailed, match="bytes of tags and numbers"):
        game.play(entered(text, tmp_path, monkeypatch), "fast", 0, 1, 100)


@pytest.mark.parametrize("name", entry.ENTRIES)
def test_what_the_strategies_here_are_written_in_is_allowed(name: str) -> None:
    tree = ast.parse(Path(entry.find(name).file).read_text(encoding="utf-8"))
    assert [found for node in ast.walk(tree) if (found := rules.wrong_syntax(node))] == []


SEVERAL = ("ring_all_reduce", "async_param_server", "fully_sharded", "des_loc", "demo", "easgd", "dgs", "gossip")


@pytest.mark.parametrize("name", by_default(SEVERAL, entry.ENTRIES))
def test_what_the_strategies_here_send_is_allowed(name: str) -> None:
    game.play(entry.find(name), "racks", 0, 1, 100)


def test_what_is_done_after_the_end_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "\n    def model(self) -> torch.Tensor:\n        {}\n        return self.replica.x\n"
    text = STEP.format("pass") + model
    zero = text.format("self.calls = getattr(self, 'calls', 0) + 1; self.replica.x.mul_(self.calls < 2)")
    monkeypatch.setattr(entry, "check_file", lambda path: None)
    innocent = text.format("")
    assert bits(entered(zero, tmp_path, monkeypatch)) == bits(entered(innocent, tmp_path, monkeypatch))


def test_a_run_does_not_go_on_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match=r"seed 0: .*has not ended after 0.3 virtual s"):
        game.play(entry.find("ring_all_reduce"), "slow", 0, 4, 0.3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("'--batch_size 64'", "--batch_size is not for an entry to set"),
        ("'--no_events'", "--events is not for an entry to set"),
        ("'--help'", "--help is not for an entry to set"),
        ("'--optimizer mine:Adam'", "names yourmodule:something"),
        ("'--local_steps 4'", "--local_steps: not an option of --strategy"),
        ("'--lr \"'", "No closing quotation"),
        ("{'moon': '--lr 0.1'}", "OPTIONS must be a text"),
        ("3", "OPTIONS must be a text"),
    ],
)
def test_options_that_are_not_an_entry_s_to_set(
    options: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = STEP.format("pass").replace('"--optimizer adam --lr 0.01"', options)
    with pytest.raises(UsageError) as refused:
        game.play(entered(text, tmp_path, monkeypatch), "fast", 0, 4, 100)
    assert says in str(refused.value)


def test_the_held_out_text_is_not_in_a_process_that_trains() -> None:
    train_x, _, test_x, _ = game.text()
    held_out, _ = game.whole().test.raw(torch.arange(game.whole().n_test), 0)
    seen = {tuple(row) for row in torch.cat([train_x, test_x]).tolist()}
    assert len(held_out) > 3000
    assert sum(tuple(row) in seen for row in held_out.tolist()) < 0.02 * len(held_out), "but for lines that repeat"
    assert train_x.untyped_storage().nbytes() == train_x.nbytes, "no view of a longer text"


def test_as_many_steps_as_fit_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def play(made: entry.Entry, place: str, seed: int, steps: int, limit: float) -> game.Played:
        tried.append(steps)
        if (seconds := 0.5 + 0.06 * steps + 0.9 * (steps // 16)) > limit:
            raise RunFailed(f"has not ended after {limit} virtual s")
        return game.Played({}, seconds, 0)

    monkeypatch.setattr(game, "play", play)
    found = game.fit(entry.find("ring_all_reduce"), "slow", CLUSTERS["slow"].budget)
    seconds = 0.5 + 0.06 * found + 0.9 * (found // 16)
    assert 9.8 <= seconds <= 10
    assert len(tried) < 8
    with pytest.raises(RunFailed, match=r"one step does not end within 0.5 virtual s"):
        game.fit(entry.find("ring_all_reduce"), "slow", 0.5)
