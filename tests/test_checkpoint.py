"""A checkpoint comes back as it was saved, or it is refused: there is nothing in between, and nothing is unpickled."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import nlm_core
from nlm_core import checkpoint as module
from nlm_core.checkpoint import load_checkpoint, load_optimizer, save_checkpoint
from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.model import NLM
from nlm_core.tokenizer import Tokenizer

METRICS = {"validation_loss": 1.25, "note": "Grüße"}


def save(path: Path, model: NLM, tokenizer: Tokenizer, **extra) -> Path:
    """A checkpoint as training writes it."""
    extra = {"step": 7, "metrics": METRICS, "training": {"elapsed": 1.5}, "dtype": "float32"} | extra
    return save_checkpoint(path, model, tokenizer, optimizer={"momentum/token_emb": np.arange(3.0)}, **extra)


@pytest.fixture
def saved(tmp_path, tiny_model, tokenizer) -> Path:
    return save(tmp_path / "ckpt", tiny_model, tokenizer)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rewrite(folder: Path, **model_settings) -> None:
    """Change the configuration and make its hash right again, as a person who means it would."""
    content = json.loads((folder / "config.json").read_text())
    content["model"] |= model_settings
    del content["sha256"]
    canonical = json.dumps(content, sort_keys=True).encode()
    content["sha256"] = hashlib.sha256(canonical).hexdigest()
    (folder / "config.json").write_text(json.dumps(content))


# ---- there and back


def test_float32_comes_back_exactly(saved, tiny_model, tokenizer):
    checkpoint = load_checkpoint(saved)
    expected = tiny_model.state_dict()
    assert list(checkpoint["params"]) and set(checkpoint["params"]) == set(expected)
    for name, value in checkpoint["params"].items():
        assert value.dtype == np.float32
        assert np.array_equal(value, expected[name].numpy())
    assert checkpoint["params"]["pos_emb"].shape == (32, 16)
    assert checkpoint["config"] == tiny_model.config
    assert (checkpoint["step"], checkpoint["metrics"], checkpoint["training"]) == (7, METRICS, {"elapsed": 1.5})
    assert checkpoint["tokenizer"].merges == tokenizer.merges
    assert checkpoint["path"] == saved
    assert load_optimizer(checkpoint)["momentum/token_emb"].tolist() == [0.0, 1.0, 2.0]


def test_float16_comes_back_as_float32_rounded_once(tmp_path, tiny_model, tokenizer):
    path = save_checkpoint(tmp_path / "ckpt", tiny_model, tokenizer)
    for name, value in load_checkpoint(path)["params"].items():
        assert value.dtype == np.float32
        assert np.array_equal(value, tiny_model.state_dict()[name].half().float().numpy())
    weights = (path / "model.safetensors").stat().st_size
    assert weights < 2 * sum(param.numel() for param in tiny_model.parameters()) + 5000


def test_matrices_that_lie_transposed_in_memory_come_back(tmp_path, tiny_model, tokenizer):
    weight = tiny_model.blocks[0].attn.out.weight
    weight.data = weight.data.T.contiguous().T
    momentum = np.arange(6.0).reshape(2, 3).T
    path = save_checkpoint(
        tmp_path / "ckpt", tiny_model, tokenizer, dtype="float32", optimizer={"momentum": momentum, "step": np.array(3)}
    )
    checkpoint = load_checkpoint(path)
    assert np.array_equal(checkpoint["params"]["blocks.0.attn.out.weight"], weight.detach().numpy())
    optimizer = load_optimizer(checkpoint)
    assert np.array_equal(optimizer["momentum"], momentum)
    assert optimizer["step"].shape == ()


def test_a_finished_model_has_no_optimizer(tmp_path, tiny_model, tokenizer):
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "ckpt", tiny_model, tokenizer))
    with pytest.raises(UserError, match=r"^ckpt holds a finished model; training can't go on from it"):
        load_optimizer(checkpoint)


def test_other_files_beside_it_do_not_matter(saved):
    before = load_checkpoint(saved)["sha256"]
    (saved / "README.md").write_text("A model card.")
    assert load_checkpoint(saved)["sha256"] == before


# ---- the hash that names it


def test_equal_checkpoints_have_equal_names(tmp_path, saved, tiny_model, tokenizer):
    again = save(tmp_path / "again", tiny_model, tokenizer)
    assert snapshot(again) == snapshot(saved)


def test_the_name_changes_with_weights_tokenizer_and_configuration(
    tmp_path, saved, tiny_model, tokenizer, stories_file
):
    (tmp_path / "some.txt").write_text(stories_file.read_text()[:100_000])
    other = Tokenizer.train([tmp_path / "some.txt"], 512)
    names = [load_checkpoint(saved)["sha256"]]

    def add(model, tokenizer, **extra):
        names.append(load_checkpoint(save(tmp_path / "other", model, tokenizer, **extra))["sha256"])

    add(tiny_model, tokenizer, step=8)
    add(tiny_model, tokenizer, metrics={})
    add(tiny_model, tokenizer, dtype="float16")
    add(tiny_model, other)
    more_heads = NLM(ModelConfig(**tiny_model.config.to_dict() | {"n_heads": 4}))
    more_heads.load_state_dict(tiny_model.state_dict())
    add(more_heads, tokenizer)
    with torch.no_grad():
        tiny_model.final_norm.bias[3] = 1e-30
    add(tiny_model, tokenizer)
    assert len(set(names)) == len(names)


# ---- damage


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"])
def test_a_truncated_or_missing_file_is_named(saved, name):
    raw = (saved / name).read_bytes()
    for length in (0, 1, 8, 100, len(raw) // 2, len(raw) - 2):
        (saved / name).write_bytes(raw[:length])
        with pytest.raises(UserError, match=rf"^ckpt/{re.escape(name)} is "):
            load_checkpoint(saved)
    (saved / name).unlink()
    with pytest.raises(UserError, match=re.escape(name)):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"])
def test_a_flipped_bit_is_noticed(saved, name):
    raw = bytearray((saved / name).read_bytes())
    last = len(raw) - 2  # after it is a newline in the two JSON files
    for place in {0, 1, 8, last, *np.random.default_rng(0).integers(0, last, 60).tolist()}:
        for bit in (1, 128) if name != "config.json" else (1, 2, 4, 8, 16, 32, 64, 128):
            raw[place] ^= bit
            (saved / name).write_bytes(raw)
            with pytest.raises(UserError) as caught:
                load_checkpoint(saved)
            assert "\n" not in str(caught.value)
            raw[place] ^= bit
    (saved / name).write_bytes(raw)
    load_checkpoint(saved)


@pytest.mark.parametrize(
    ("settings", "parameter"),
    [
        ({"n_layers": 1}, r"blocks\.1\..* instead of absent"),
        ({"n_layers": 3}, r"blocks\.2\..* is missing"),
        ({"d_model": 8}, r"token_emb is \(512, 16\) instead of \(512, 8\)"),
        ({"context_length": 64}, r"pos_emb is \(32, 16\) instead of \(64, 16\)"),
        ({"vocab_size": 513}, r"token_emb is \(512, 16\) instead of \(513, 16\)"),
    ],
)
def test_another_shape_than_the_configuration_says(saved, settings, parameter):
    rewrite(saved, **settings)
    with pytest.raises(UserError, match=rf"^ckpt/model\.safetensors does not fit its config\.json: {parameter}"):
        load_checkpoint(saved)


@pytest.mark.parametrize("settings", [{"n_heads": 5}, {"n_layers": 0}, {"n_layers": "2"}, {"rotary": True}])
def test_a_configuration_that_is_not_allowed(saved, settings):
    rewrite(saved, **settings)
    with pytest.raises(UserError, match=next(iter(settings))):
        load_checkpoint(saved)


def test_what_is_no_checkpoint(tmp_path, saved):
    (tmp_path / "empty").mkdir()
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2"}')
    for name, message in (
        ("none", "none is not a folder with a checkpoint"),
        ("ckpt/config.json", "is not a folder with a checkpoint"),
        ("empty", "empty is not an nlm checkpoint: it has no config.json"),
        ("gpt2", "gpt2/config.json does not belong to an nlm checkpoint"),
    ):
        with pytest.raises(UserError, match=message):
            load_checkpoint(tmp_path / name)


# ---- saving


@pytest.mark.parametrize("step", ["weights", "tokenizer", "config"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_saving_that_fails_half_way_leaves_the_old_one(
    tmp_path, saved, tiny_model, tokenizer, monkeypatch, step, error
):
    before = snapshot(tmp_path)

    def fail(*args, **kwargs):
        raise error

    owner, name = {
        "weights": (safetensors.numpy, "save"),
        "tokenizer": (Tokenizer, "save"),
        "config": (module, "write_json"),
    }[step]
    monkeypatch.setattr(owner, name, fail)
    for path in ("ckpt", "new"):
        with pytest.raises(type(error)):
            save(tmp_path / path, tiny_model, tokenizer, step=8)
        assert snapshot(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt"]


def test_an_old_checkpoint_is_replaced_as_a_whole(tmp_path, saved, tiny_model, tokenizer):
    save_checkpoint(saved, tiny_model, tokenizer, step=8)
    assert load_checkpoint(saved)["step"] == 8
    assert not (saved / "optimizer.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_nothing_but_a_checkpoint_is_ever_replaced(tmp_path, tiny_model, tokenizer):
    (tmp_path / "notes.txt").write_text("dear diary")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"meow")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text('{"train": {}}')
    before = snapshot(tmp_path)
    for name in ("notes.txt", "photos", "run"):
        with pytest.raises(UserError, match=rf"^{re.escape(name)}.*(is a file; give|save to another folder)"):
            save_checkpoint(tmp_path / name, tiny_model, tokenizer)
    assert snapshot(tmp_path) == before
    (tmp_path / "empty").mkdir()
    save_checkpoint(tmp_path / "empty", tiny_model, tokenizer)
    load_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, "float32"), (np.inf, "float32"), (-np.inf, "float16"), (np.nan, "float16"), (1e6, "float16")],
)
def test_weights_that_are_not_finite_are_never_written(tmp_path, saved, tiny_model, tokenizer, value, dtype):
    before = snapshot(tmp_path)
    with torch.no_grad():
        tiny_model.blocks[1].mlp.up.bias[5] = value
    with pytest.raises(UserError, match=rf"parameter blocks\.1\.mlp\.up\.bias .* not finite in {dtype}"):
        save_checkpoint(saved, tiny_model, tokenizer, dtype=dtype)
    assert snapshot(tmp_path) == before


def test_weights_are_saved_in_two_formats_only(tmp_path, tiny_model, tokenizer):
    with pytest.raises(UserError, match="saved as float16 or float32, not 'int8'"):
        save_checkpoint(tmp_path / "ckpt", tiny_model, tokenizer, dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_the_tokenizer_must_be_the_model_s(tmp_path, tiny_model):
    with pytest.raises(UserError, match="the tokenizer has 256 ids, the model 512"):
        save_checkpoint(tmp_path / "ckpt", tiny_model, Tokenizer([]))
    assert list(tmp_path.iterdir()) == []


# ---- the folder of a run


@pytest.fixture
def run(tmp_path, tiny_model, tokenizer) -> Path:
    for step in (2, 9, 10):
        save(tmp_path / "run" / "checkpoints" / f"step-{step:08d}", tiny_model, tokenizer, step=step)
    return tmp_path / "run"


def damage(run: Path, step: int) -> None:
    path = run / "checkpoints" / f"step-{step:08d}" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def test_a_run_gives_its_newest_checkpoint(run, capsys):
    checkpoint = load_checkpoint(run)
    assert checkpoint["step"] == 10
    assert checkpoint["path"] == run / "checkpoints" / "step-00000010"
    assert capsys.readouterr().out == ""


def test_the_one_before_a_damaged_one_is_taken_and_said(run, capsys):
    damage(run, 10)
    said = []
    assert load_checkpoint(run, said.append)["step"] == 9
    assert len(said) == 1
    assert "step-00000010/model.safetensors is damaged" in said[0]
    shutil.rmtree(run / "checkpoints" / "step-00000009")
    assert load_checkpoint(run)["step"] == 2
    assert "taking the checkpoint before it" in capsys.readouterr().out


def test_all_damaged(run):
    for step in (2, 9, 10):
        damage(run, step)
    said = []
    with pytest.raises(UserError, match=r"^all 3 checkpoints in run/checkpoints are damaged"):
        load_checkpoint(run, said.append)
    assert [message for message in said if "step-00000002" in message and "before it" in message] == []


def test_a_run_without_a_checkpoint(tmp_path):
    (tmp_path / "run" / "checkpoints" / ".step-00000001.99.tmp").mkdir(parents=True)
    with pytest.raises(UserError, match="the run run has no checkpoint yet"):
        load_checkpoint(tmp_path / "run")


# ---- which one, and from where


def test_without_a_path_it_is_the_shipped_one_or_the_reader_s(tmp_path, tiny_model, tokenizer, monkeypatch):
    save(tmp_path / "checkpoints" / "nlm", tiny_model, tokenizer, step=1)
    save(tmp_path / "mine", tiny_model, tokenizer, step=2)
    (tmp_path / "book" / "deep").mkdir(parents=True)
    for root in (tmp_path, None):
        if root is None:
            monkeypatch.delenv("NLM_ROOT")
        for here in ("book", "book/deep", "."):
            monkeypatch.chdir(tmp_path / here)
            monkeypatch.delenv("NLM_CHECKPOINT", raising=False)
            assert load_checkpoint()["step"] == 1
            monkeypatch.setenv("NLM_CHECKPOINT", "")
            assert load_checkpoint()["step"] == 1
            monkeypatch.setenv("NLM_CHECKPOINT", str(tmp_path / "mine"))
            assert load_checkpoint()["step"] == 2
            assert NLM.from_checkpoint().config == tiny_model.config


def test_no_module_can_unpickle():
    for source in sorted(Path(nlm_core.__file__).parent.glob("*.py")):
        unsafe = re.findall(r"\b(?:pickle|joblib|torch\.load|np\.load|numpy\.load|allow_pickle)\b", source.read_text())
        assert unsafe == [], source.name
