"""What the check says of solutions, of typical mistakes, and of other algorithms."""

import json
from pathlib import Path

import pytest
import torch

from lessons import check, report
from lessons.judge import draw
from lessons.lab import Figure
from lessons.labs import LABS
from lessons.report import Report
from records.errors import UsageError
from tests.lessons.mistakes import not_waiting, oracle
from tests.runs import ROOT, handlers_kept

MISTAKES = Path(__file__).parent / "mistakes"

# By lab and file: the kind of the verdict, and what must stand in its line.
EXPECTED: dict[str, dict[str, tuple[str, str]]] = {
    "links": {
        "always_takes_the_ring": ("wrong", "you chose 'ring' for all 9 clusters, and each of the three is the best"),
        "asks_its_neighbours": ("wrong", "rank 3) / 4; expected each rank once, divided by 4: all parts have come on"),
        "changes_what_it_sends": (
            "damage",
            "wait for its Work; two that wait before they receive are a deadlock: send",
        ),
        "counts_a_latency_for_each_worker": ("wrong", "2 (N - 1) latencies are counted, one for each message; while"),
        "counts_a_server_of_four_by_its_workers": ("wrong", "you choose as if N - 3 quarters passed a card one after"),
        "counts_all_ranks_in_turn": ("wrong", "N messages are counted one after the other in each step; on a ring all"),
        "counts_n_for_n_minus_1": ("wrong", "2 N latencies are counted: in each round the chunk is there after N - 1"),
        "counts_one_round": ("wrong", "N - 1 latencies are counted, and a ring goes round twice"),
        "counts_the_latency_once": ("wrong", "the latency is counted once; a rank sends a chunk when it has received"),
        "divides_in_each_round": (
            "wrong",
            "rank 3) / 16: every rank is in it once, but divided by 16: divide by N once",
        ),
        "forgets_full_duplex": ("wrong", "2 (N - 1) vectors are counted one after the other; a card is full duplex"),
        "forgets_to_divide": ("wrong", "all_reduce: N = 2, 8 elements: rank 0 ends with the sum; expected the mean"),
        "goes_round_the_ring": ("costly", "messages of a rank: 14; the best known needs 3, log2 N"),
        "ignores_compute": ("wrong", "you choose as if computing took no time, or equally long in all three"),
        "ignores_latency": ("wrong", "you choose as if messages had no latency"),
        "returns_milliseconds": ("wrong", "yours is 1,000 times as long in every cluster: return seconds"),
        "sends_on_to_the_next": ("wrong", "all ranks hold the mean, but element "),
        "sends_to_everyone": ("costly", "yours is faster here, for a message costs its sender nothing but the time"),
        "shares_the_batch_over_all_ranks": ("wrong", "equally long in all three: servers compute nothing, and fewer"),
        "sends_whole_vectors_round": ("wrong", "whole vectors are counted, 2 (N - 1) of them; a message of a ring is"),
        "stays_with_one_peer": ("wrong", "ends with (2 x rank 0 + 2 x rank 1) / 4, without rank 2, 3: after s rounds"),
        "takes_bits_for_bytes": ("wrong", "bits are taken for bytes: a byte has 8 bits"),
    },
    "lost_updates": {
        "adds_its_own_again": ("wrong", "of its own twice: the server's x has what was pushed; only what was not"),
        "goes_on_without_its_steps": ("wrong", "of its own, not pushed yet: the client goes on without its own work"),
        "moves_base_by_fetch_only": ("wrong", "again, already pushed; what is pushed is to be taken off: a push is to"),
        "moves_base_first": ("wrong", "though no fetch has come since: where base is moved first, x - base is 0"),
        "names_a_new_x": ("wrong", "with a minus: a fetch has put them into base, and not into x (`x = ...` names a"),
        "names_new_tensors": ("wrong", "its x is as before: `x = ...` names a new tensor; write into x (copy_, add_)"),
        "never_moves_base": (
            "wrong",
            "by a push nor a fetch (`base = ...` does not change the caller's base). In the server's x, of 6 ",
        ),
        "pushes_values": ("wrong", "push 1 of rank 1 holds x itself, a value, and not what rank 1 has added to it"),
        "pushes_what_it_fetched": ("wrong", "with a fetch"),
        "takes_a_mean": ("wrong", "divided by the 2 clients: gradients of one step have a mean, steps that were taken"),
        "takes_a_mean_on_the_server": ("wrong", "counts 0.031 in the end: apply takes a mean of x and what was pushed"),
        "takes_its_own_into_base": ("wrong", "x still has it after that fetch, but base has it too, as if the server"),
        "throws_steps_away": ("wrong", "made before a fetch: that fetch has thrown away what was not pushed yet"),
        "waits_before_it_asks": (
            "deadlock",
            "deadlock: rank 1 waits for rank 0 (for 'parameters'), which waits for anybody (for ('push', 'fetch', "
            "'goodbye')); no client has sent 'fetch', which the server answers with 'parameters'",
        ),
        "writes_over_x": ("wrong", "the x that the server began with is gone: apply writes what was pushed over it"),
    },
    "not_waiting": not_waiting.EXPECTED,
    "oracle": oracle.EXPECTED,
    "param_server": {
        "divides_by_all_ranks": ("wrong", "the server divided by 3; there are 2 gradients"),
        "does_not_copy": ("unreleased", "step 1: rank 1 received x of rank 0 and never released it: use `with"),
        "leaves_one_out": ("wrong", "the server's gradient was g of rank 1; expected the mean of all 2"),
        "replies_to_one": ("deadlock", "the server has not sent x to rank 1, but to others"),
        "sends_the_old_x": ("wrong", "rank 1 holds the x from before the step"),
        "takes_the_sum": ("wrong", "N = 3, step 1: the server took the sum of the gradients; expected their mean"),
        "updates_for_each_gradient": ("wrong", "the server made 2 updates; expected 1"),
        "updates_on_the_worker": ("wrong", "rank 1 has made a step with its own gradient besides"),
        "waits_for_x_first": (
            "deadlock",
            "rank 0 waits for rank 1 (for 'gradient'), which waits for rank 0 (for 'parameters'); no worker has sent",
        ),
    },
    "ring": {
        "adds_finished_chunks": (
            "wrong",
            "N = 3, step 4: rank 0 sent chunk 0 to rank 1 that holds 2 x rank 0 + rank 1 + rank 2; expected rank 0 + "
            "rank 1 + rank 2; in share-only a chunk is finished: copy it, do not add",
        ),
        "adds_what_was_added": ("wrong", "rank 0 ends with (rank 0 + rank 1 + 2 x rank 2) / 3 in chunk 0"),
        "begins_with_the_wrong_chunk": ("wrong", "N = 3, step 3: rank 0 sent chunk 0 to rank 1; expected chunk 1"),
        "changes_what_it_sends": ("damage", "changed it before rank 2 had received it: wait for its Work"),
        "chunks_too_few": ("raised", "IndexError: tuple index out of range, line 14 of chunks_too_few.py"),
        "cuts_by_tensor": ("costly", "the chunks differ in length: 28000 elements in the longest, 10000"),
        "forgets_to_divide": ("wrong", "rank 0 ends with the sum; expected the mean: divide by N"),
        "hops_once": ("wrong", "without the part of rank 1; expected the mean of all 3 ranks"),
        "returns_a_new_vector": ("returned", "write the mean into `vector`, in place"),
        "sends_whole_vectors": ("costly", "sends the whole vector at once; bytes of a rank: 480000; the best known"),
        "waits_before_it_receives": (
            "deadlock",
            "rank 0 waits for rank 1 (to read what it sent), which waits for rank 2 (to read what it sent), which "
            "waits for rank 0 (to read what it sent)",
        ),
    },
    "compression": {
        "begins_with_its_own": ("wrong", "hold different bits in element"),
        "begins_with_rank_0": ("costly", "all ranks send to rank 0 first, whose card takes one code after the other"),
        "changes_g": ("damage", "rank 0: compress changed g, which belongs to the caller"),
        "chooses_by_g": ("wrong", "it chooses by g alone, without what was kept"),
        "chooses_by_value": ("wrong", "it chooses the largest values; expected the largest magnitudes"),
        "clears_everything": ("wrong", "the residual is zero everywhere, so element"),
        "compresses_twice": ("wrong", "exchange leaves another residual than compress does"),
        "divides_by_senders": ("wrong", "expected a division by N = 2: a rank that does not send an element sends 0"),
        "does_not_cap_k": (
            "raised",
            "N = 1, 4 elements: rank 0 raised RuntimeError: selected index k out of range",
        ),
        "forgets_to_divide": ("wrong", "exchange returns the sum of the codes; expected their mean: divide by N"),
        "forgets_what_was_kept": ("wrong", "which is g alone; "),
        "keeps_what_it_sent": ("wrong", "though it was sent: it would be sent again"),
        "leaves_itself_out": ("wrong", "rank 0: exchange returns the code of rank 1 / 2; expected the mean of all 2"),
        "overwrites": ("wrong", "holds the part of one of them: where codes have an element in common, add"),
        "rebinds_the_residual": ("wrong", "the residual is as it was before, so what is not sent is lost"),
        "replaces_the_residual": ("wrong", "the residual has forgotten what it held before the step"),
        "returns_long_indices": (
            "returned",
            "rank 0: compress returned indices of int64; expected int32",
        ),
        "sends_long_indices": ("costly", "the indices travel as int64, 8 bytes each, where int32 has 4"),
        "sends_magnitudes": ("wrong", "compress sends magnitudes, without their signs"),
        "sends_two_messages": ("costly", "a code is two messages, where one can carry both"),
        "unpacks_k_of_fewer": ("raised", "here k = 7 and P = 4: a code has 4 elements, also for unpack"),
        "sends_zeros": ("costly", "rank 0 sends 160,000 bytes, a whole vector, where a code has 3,200"),
    },
    "sharding": {
        "does_not_gather": ("wrong", "rank 0 holds the old x in chunk 0: nobody has sent it the new one"),
        "drops_the_tail": ("wrong", "N = 4, 10 elements, step 1: no rank updated elements 8 to 9 of x"),
        "forgets_the_mean": ("wrong", "rank 0 updated chunk 1 with the sum of the gradients; expected their mean"),
        "gathers_before_the_update": ("wrong", "rank 0 holds the old x in chunk 0, for rank 2 sent it so"),
        "gathers_both": ("costly", "the mean gradient is sent on to others, who need only the new x"),
        "gathers_gradients": ("wrong", "its g holds the finished gradient there, but its optimizer has no state for"),
        "one_rank_updates": ("costly", "the optimizer of rank 0 keeps 40,000 numbers, more than its share"),
        "shares_the_gradient_as_x": ("wrong", "rank 0 holds gradients in chunk 0 of x"),
        "swaps_the_arguments": ("update", "update was given a slice of g to be updated"),
        "takes_its_own_gradient": ("wrong", "No chunk of g on this rank is the sum over all ranks: reduce-scatter"),
        "updates_a_copy": ("wrong", "called update with a tensor that is no slice of x, such as a copy"),
        "updates_all_of_x": ("wrong", "ranks 0 and 1 both updated elements 0 to 11 of x, so both keep their state"),
        "updates_before_it_reduces": ("wrong", "When it was updated, the sum of that chunk was not finished"),
        "updates_another_chunk": ("wrong", "On this rank the reduced chunk is chunk 1: update that one"),
    },
}
FILES = [(lab, path.stem) for lab in LABS for path in sorted((MISTAKES / lab).glob("[a-z]*.py"))]


@pytest.mark.parametrize("lab", LABS)
def test_a_solution_gets_all_points(lab: str) -> None:
    found = check.check_file(lab, str(check.SOLUTIONS / f"{lab}.py"))
    assert (found.verdict, found.points) == ("right, and as good as is known", 100)
    assert found.right
    assert found.passed
    assert all(figure.yours == pytest.approx(figure.best, rel=1e-3) for figure in found.figures), "the closed forms"


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_begins_with_a_hole_that_says_what_to_write(lab: str) -> None:
    found = check.check_file(lab, str(ROOT / "lessons" / f"{lab}.py"))
    assert found.kind == "hole"
    assert f"of {lab}.py: " in found.verdict
    assert found.points == 0


def test_every_lab_has_five_mistakes_at_least() -> None:
    assert {lab: sorted(expected) for lab, expected in EXPECTED.items()} == {
        lab: [stem for of, stem in FILES if of == lab] for lab in LABS
    }
    assert all(len(expected) >= 5 for expected in EXPECTED.values())
    lines = [line for expected in EXPECTED.values() for line in expected.values()]
    assert len(set(lines)) == len(lines), "each gets a line of its own"


@pytest.mark.parametrize(("lab", "stem"), FILES)
def test_a_mistake_is_named(lab: str, stem: str) -> None:
    kind, text = EXPECTED[lab][stem]
    found = check.check_file(lab, str(MISTAKES / lab / f"{stem}.py"))
    assert (found.kind, found.verdict) == (kind, found.verdict)
    assert text in found.verdict
    assert "\n" not in found.verdict
    assert not found.passed
    missed = sum(not figure.is_best for figure in found.figures)
    assert found.points == (0 if kind != "costly" else 100 - round(40 * missed / len(found.figures)))
    assert missed or kind != "costly"


# Another algorithm that is right


def write(tmp_path: Path, body: str, head: str = "transport, vector") -> str:
    path = tmp_path / "mine.py"
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    path.write_text(f"import torch\n\n\ndef all_reduce({head}):\n{lines}\n")
    return str(path)


SOLVED = (check.SOLUTIONS / "ring.py").read_text()
MIRRORED = "r = -r % N\n    right, left = -(r + 1) % N, -(r - 1) % N"
OTHER_WAY = SOLVED.replace("right, left = (r + 1) % N, (r - 1) % N", MIRRORED)


def test_a_ring_that_goes_the_other_way_round_is_as_good(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OTHER_WAY)
    assert check.check_file("ring", str(tmp_path / "mine.py")).points == 100


def test_a_fault_in_a_ring_that_goes_the_other_way_round_is_found(tmp_path: Path) -> None:
    wrong = OTHER_WAY.replace("(r - s) % N])\n    for", "(r - s - 1) % N])\n    for").replace("(r + 1 - s)", "(r - s)")
    (tmp_path / "mine.py").write_text(wrong)
    found = check.check_file("ring", str(tmp_path / "mine.py"))
    assert "step 3: rank 0 sent chunk 0 to rank 2; expected chunk 1" in found.verdict


def test_all_to_one_and_back_is_right_and_costs_more(tmp_path: Path) -> None:
    body = """
if transport.rank:
    transport.isend(vector, 0, "to one").wait()
    transport.recv(0, "to all").copy_to(vector)
    return
for peer in transport.peers:
    with transport.recv(peer, "to one") as received:
        vector.add_(received.vector)
vector.div_(transport.world_size)
for work in [transport.isend(vector, peer, "to all") for peer in transport.peers]:
    work.wait()
"""
    found = check.check_file("ring", write(tmp_path, body))
    assert found.kind == "costly"
    figures = {figure.name: (figure.yours, figure.best, figure.is_best) for figure in found.figures}
    assert figures["messages of a rank"] == (3, 6, True)
    assert figures["bytes of a rank"] == (480_000, 240_000, False)
    assert figures["rounds"] == (2, 6, True)
    seconds, best, _ = figures["virtual seconds"]
    assert best == pytest.approx(6 * 50e-6 + 1.5 * 160_000 / 125e6)
    assert seconds == pytest.approx(2 * 50e-6 + 6 * 160_000 / 125e6)
    assert found.points == 80, "60 for right results, 10 for each figure of four"


def test_another_dtype_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOLVED.replace("% N], right", "% N].double(), right"))
    found = check.check_file("ring", str(tmp_path / "mine.py"))
    assert found.kind == "costly"
    assert "rank 0 sends float64; the vector is float32; bytes of a rank: 480000" in found.verdict


def test_a_hole_after_a_wrong_message_names_the_message(tmp_path: Path) -> None:
    right = (MISTAKES / "ring" / "forgets_to_divide.py").read_text()
    hole = '    raise NotImplementedError("the mean")\n'
    (tmp_path / "mine.py").write_text(right + hole)
    found = check.check_file("ring", str(tmp_path / "mine.py"))
    assert found.verdict == "still to be written, line 22 of mine.py: the mean; the messages so far are right"
    wrong = (MISTAKES / "ring" / "begins_with_the_wrong_chunk.py").read_text()
    (tmp_path / "mine.py").write_text(wrong.replace("    vector.div_(N)\n", hole))
    found = check.check_file("ring", str(tmp_path / "mine.py"))
    assert found.verdict.endswith("the mean; but first, N = 3, step 3: rank 0 sent chunk 0 to rank 1; expected chunk 1")


def test_what_was_printed_is_shown_with_its_rank(tmp_path: Path) -> None:
    found = check.check_file("ring", write(tmp_path, 'print("points: 100 of 100")\nraise NotImplementedError("all")'))
    assert found.points == 0
    assert "rank 0 printed: points: 100 of 100\n" in found.printed
    assert all(line.startswith("rank ") for line in found.printed.splitlines())


# In a notebook


def test_a_function_of_a_notebook_is_judged() -> None:
    def all_reduce(transport: object, vector: object) -> None:
        raise NotImplementedError("share-reduce")

    found = check.check("ring", all_reduce)
    assert found.kind == "hole"
    assert "not yet, 0 of 100 points" in found._repr_html_()
    from lessons.solutions import ring

    found = check.check("ring", ring.all_reduce)
    shown = found._repr_html_()
    assert "right, 100 of 100 points" in shown
    assert "2 (N - 1) P / N" in shown
    assert 'src="data:image/png;base64,' in shown
    assert str(found).splitlines()[0] == "ring: right, and as good as is known"


@pytest.mark.parametrize(("stem", "same"), [("forgets_to_divide", True), ("hops_once", False)])
def test_beside_the_picture_it_says_whether_the_messages_are_those_of_the_reference(stem: str, same: bool) -> None:
    found = check.check_file("ring", str(MISTAKES / "ring" / f"{stem}.py"))
    assert ("is as in the reference: look at what is computed" in found._repr_html_()) == same


# The command


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with handlers_kept():
        code = check.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_scores_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / file for name, file in
             (("json", "scores.json"), ("gradescope", "results.json"), ("picture", "mine.svg"))}  # fmt: skip
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    mistake = str(MISTAKES / "ring" / "sends_whole_vectors.py")
    code, out, _ = said(capsys, "ring", mistake, *options)
    assert code == 0, "it is right"
    assert "points: 80 of 100" in out
    scores = json.loads(files["json"].read_text())
    assert (scores["lab"], scores["right"], scores["passed"], scores["points"]) == ("ring", True, False, 80)
    assert [figure["name"] for figure in scores["figures"] if not figure["is_best"]] == [
        "bytes of a rank", "virtual seconds"
    ]  # fmt: skip
    results = json.loads(files["gradescope"].read_text())
    assert results["score"] == sum(test["score"] for test in results["tests"]) == 80
    assert sum(test["max_score"] for test in results["tests"]) == 100
    assert "<svg" in files["picture"].read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files.values())


def test_a_wrong_solution_ends_with_1_and_its_results_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(
        capsys, "ring", str(MISTAKES / "ring" / "hops_once.py"), "--gradescope", str(tmp_path / "results.json")
    )
    assert code == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["score"] == 0
    assert results["output"].rstrip() == out.rstrip()
    assert sum(test["max_score"] for test in results["tests"]) == 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("rnig", "x.py"), "rnig: there is no such lab; did you mean ring?"),
        (("ring", "nothing.py"), "nothing.py: there is no such file"),
        (("ring", "lessons/ring.py", "--picture", "x.bmp"), "--picture x.bmp: must end with .png, .svg, .pdf"),
        (("ring", "lessons/ring.py", "--json", "/dev/null/x/y.json"), "--json /dev/null/x/y.json: cannot be written"),
        (("ring", "lessons"), "lessons: is a folder; give the file with your functions"),
        (("ring", "lessons/ring.py", "--json", "lessons"), "--json lessons: cannot be written: Is a directory"),
        (
            ("ring", "lessons/ring.py", "--json", "lessons/ring.py"),
            "--json lessons/ring.py: is your file; give another",
        ),
        (
            ("ring", "lessons/ring.py", "--json", "x.json", "--gradescope", "./x.json"),
            "--gradescope ./x.json: is --json;",
        ),
        (("ring", "lessons/ring.py", "--jsn", "x"), "--jsn: there is no such option; did you mean --json?"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, err = said(capsys, *arguments)
    assert code == 2
    assert not out
    assert err.startswith(f"error: {text}")
    assert len(err.splitlines()) == 1


def test_points_are_a_plain_sum() -> None:
    lab = LABS["ring"]
    figure = lab.compare(6, 240_000, 6, 1.0)
    assert [one.is_best for one in figure] == [True, True, True, False]
    assert Report(lab, "costly", "", tuple(figure)).points == 90
    assert Report(lab, "wrong", "", tuple(figure)).points == 0
    assert report.shown(240_000) == "240,000"
    assert [Figure("bytes", yours, 100_000, "P").is_best for yours in (99_000, 100_050, 100_150)] == [True, True, False]


@pytest.mark.parametrize("lab", LABS)
def test_inputs_are_drawn_anew_for_every_check(lab: str) -> None:
    for case in (LABS[lab].scored, LABS[lab].real):
        first, second = (draw(LABS[lab], case).inputs for _ in range(2))
        assert (
            any(
                not torch.equal(one[name], other[name])
                for one, other in zip(first, second, strict=True)
                for name in one
                if one[name].shape == other[name].shape
            )
            or first[0].keys() != second[0].keys()
        )


def test_what_a_student_writes_is_text_in_a_notebook() -> None:
    shown = Report(LABS["ring"], "wrong", "<b>mine</b>", printed="<script>1</script>")._repr_html_()
    assert "&lt;b&gt;mine" in shown
    assert "&lt;script&gt;1" in shown


def test_another_number_of_functions_is_bad_usage() -> None:
    with pytest.raises(UsageError, match=r"check\('param_server', serve, work\): 1 functions were given"):
        check.check("param_server", len)


def test_a_file_finds_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "my_part.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    b: int = 1\n"
    )
    own = "@dataclass\nclass B(A):\n    c: float = 2\n"
    begin = f"from dataclasses import dataclass\n\nfrom my_part import A\n\n\n{own}\n\n"
    (tmp_path / "mine").write_text(SOLVED.replace("import torch\n", f"import torch\n{begin}", 1))
    assert check.check_file("ring", str(tmp_path / "mine")).points == 100
