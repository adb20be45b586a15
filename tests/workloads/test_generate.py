"""Models that are saved in either format, and what continues a text with them."""

import sys
from pathlib import Path

import pytest
import torch

from records.errors import UsageError
from tests.runs import said_by
from workloads import datasets, generate, model_files, models
from workloads.options import DataOptions

TEXT = "the cat sat on the mat. " * 40


@pytest.fixture(params=["model.pt", "model.safetensors"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a decoder with random weights, for a small text."""
    if request.param.endswith("safetensors"):
        pytest.importorskip("safetensors")
    (tmp_path / "text").write_text(TEXT)
    options = DataOptions(
        dataset="textfile", data_dir=str(tmp_path / "text"), context=8, model="gpt",
        model_options="width=16,layers=1,context=12",
    )  # fmt: skip
    data = datasets.load(options)
    model = models.seeded("gpt", data, 3, torch.float64, options.model_options)
    torch.nn.init.normal_(model.get_parameter("tokens.weight"), std=0.1)
    path = tmp_path / request.param
    path.write_bytes(model_files.to_bytes(model, str(path), options, data))
    return path


def text(path: Path, **options: float | str) -> str:
    return "".join(generate.continued(generate.Settings(str(path), **options)))  # type: ignore[arg-type]


def test_a_saved_model_is_a_state_dict_and_is_built_again(saved: Path) -> None:
    model, made_with = model_files.load(str(saved))
    assert made_with["vocabulary"] == " .acehmnost"
    if saved.suffix == ".pt":
        state = torch.load(saved, weights_only=True)
    else:
        from safetensors.torch import load_file

        state = load_file(saved)
    models.build("gpt", (8,), 11, "width=16,layers=1,context=12").load_state_dict(state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name].float())


def test_the_same_seed_draws_the_same_text_and_without_temperature_it_takes_the_likeliest(saved: Path) -> None:
    first = text(saved, prompt="the cat sat on the", n_characters=40)  # longer than a sample
    assert (first[:18], len(first)) == ("the cat sat on the", 58)
    assert text(saved, prompt="the cat sat on the", n_characters=40) == first
    assert text(saved, prompt="the cat sat on the", n_characters=40, seed=1) != first
    model, made_with = model_files.load(str(saved))
    vocabulary = made_with["vocabulary"]
    found = text(saved, prompt="the ", temperature=0, n_characters=20)
    for end in range(4, len(found)):
        tokens = torch.tensor([[vocabulary.index(one) for one in found[max(0, end - 8) : end]]])
        assert found[end] == vocabulary[int(model(tokens)[0, -1].argmax())]
    assert text(saved, prompt="the ", top_k=1, n_characters=20) == found


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt": "the Cat!"}, r"^--prompt: the text of the training has no '!', 'C'; give one or more of its 11"),
        ({"prompt": ""}, "^--prompt: is empty; give one or more"),
        ({"temperature": -1}, "^--temperature -1: must be at least 0"),
        ({"n_characters": -1}, "^--n_characters -1: must be at least 0"),
    ],
)
def test_what_cannot_be_continued_is_refused(saved: Path, options: dict[str, float | str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        text(saved, **options)


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    options, file = DataOptions(), tmp_path / "digits.pt"
    model = models.build("mlp", (1, 8, 8), 10)
    file.write_bytes(model_files.to_bytes(model, str(file), options, datasets.load(options)))
    with pytest.raises(UsageError, match="its model was not trained on text"):
        text(file)
    torch.save({"x": torch.zeros(2)}, tmp_path / "other.pt")
    for path in (tmp_path / "other.pt", tmp_path / "absent.pt", tmp_path):
        with pytest.raises(UsageError, match="is no model that --save wrote"):
            text(path)


def test_the_command_prints_the_text_or_one_line(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", str(saved), "--prompt", "the", "--n_characters", "9"])
    assert said_by(generate.main) == (0, text(saved, prompt="the", n_characters=9) + "\n")
    monkeypatch.setattr(sys, "argv", ["generate", str(saved), "--prompt", "The"])
    code, told = said_by(generate.main)
    assert (code, told.count("\n")) == (2, 1)
    assert told.startswith("error: --prompt: ")


def test_without_safetensors_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UsageError, match=r"^--save m.safetensors: needs safetensors .* -e '\.\[safetensors\]'"):
        model_files.check_format("--save m.safetensors")
