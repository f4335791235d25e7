"""Settings are read strictly; whatever is wrong with one is said in terms of its name and value."""

import dataclasses
import json
import math

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from nlm_core.config import PRESETS, ModelConfig, TrainConfig, parse_overrides, preset
from nlm_core.errors import UserError


def test_the_defaults_are_the_posts_model():
    config = ModelConfig()
    assert (config.vocab_size, config.context_length, config.d_model, config.n_layers, config.n_heads) == (
        4096,
        512,
        256,
        12,
        8,
    )
    assert config.head_size == 32


def test_positions_are_one_of_three_kinds():
    with pytest.raises(UserError, match="positions must be one of learned, sinusoidal, none, not 'rotary'"):
        ModelConfig(positions="rotary")


@pytest.mark.parametrize("config", [ModelConfig(d_model=12, n_heads=3), TrainConfig(lr=0.5, optimizer="adamw")])
def test_there_and_back_through_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("kind", [ModelConfig, TrainConfig])
def test_an_unknown_key_is_named_with_those_that_there_are(kind):
    with pytest.raises(UserError, match=r"unknown setting 'n_head'; .* has: ") as caught:
        kind.from_dict({"n_head": 8})
    assert all(field.name in str(caught.value) for field in dataclasses.fields(kind))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (ModelConfig, "n_layers", True),
        (ModelConfig, "n_layers", 2.0),
        (ModelConfig, "n_layers", "2"),
        (ModelConfig, "n_layers", None),
        (ModelConfig, "n_layers", [2]),
        (ModelConfig, "n_layers", 0),
        (ModelConfig, "n_heads", -1),
        (ModelConfig, "n_heads", 5),
        (TrainConfig, "lr", "high"),
        (TrainConfig, "lr", True),
        (TrainConfig, "lr", 10**400),
        (TrainConfig, "lr", 0.0),
        (TrainConfig, "lr", math.nan),
        (TrainConfig, "lr", math.inf),
        (TrainConfig, "clip", -1.0),
        (TrainConfig, "clip", math.nan),
        (TrainConfig, "clip", math.inf),
        (TrainConfig, "weight_decay", -0.1),
        (TrainConfig, "seed", -1),
        (TrainConfig, "seed", 2**64),
        (TrainConfig, "seed", 1.0),
        (TrainConfig, "warmup_steps", -1),
        (TrainConfig, "decay_fraction", 1.0),
        (TrainConfig, "dropout", 1.0),
        (TrainConfig, "dropout", math.nan),
        (TrainConfig, "beta1", 1),
        (TrainConfig, "beta2", -0.1),
        (TrainConfig, "momentum", 1.5),
        (TrainConfig, "batch_size", 0),
        (TrainConfig, "batch_size", 13),
        (TrainConfig, "micro_batch_size", 3),
        (TrainConfig, "log_every", 0),
        (TrainConfig, "eval_every", 0),
        (TrainConfig, "eval_tokens", 0),
        (TrainConfig, "save_every", 0),
        (TrainConfig, "optimizer", "sgd"),
        (TrainConfig, "optimizer", None),
        (TrainConfig, "precision", "float16"),
        (TrainConfig, "device", "tpu"),
        (TrainConfig, "compile", 1),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_it(kind, key, value):
    with pytest.raises(UserError) as caught:
        kind.from_dict({key: value})
    message = str(caught.value)
    assert key in message
    assert str(value) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("clip", 0), ("dropout", 0), ("weight_decay", 0), ("warmup_steps", 0), ("decay_fraction", 0), ("lr", 1)],
)
def test_borders_that_are_allowed_and_whole_numbers_for_fractions(key, value):
    config = TrainConfig.from_dict({key: value})
    assert getattr(config, key) == value
    assert type(getattr(config, key)) is type(getattr(TrainConfig(), key))


# ---- presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_allowed(name):
    model, train = preset(name, 300, {})
    assert model.vocab_size == 300
    assert {**model.to_dict(), **train.to_dict()}.items() >= {**PRESETS[name].model, **PRESETS[name].train}.items()


def test_the_book_s_preset_is_how_the_shipped_model_was_trained():
    run = json.loads((ROOT / "checkpoints" / "nlm" / "run.json").read_text())
    model, train = preset("nlm", 4096, {})
    assert model == ModelConfig.from_dict(run["model"])
    where = ("precision", "device", "keep", "keep_doublings")  # of the machine, and of what is kept
    assert {**train.to_dict(), **{key: run["train"][key] for key in where}} == run["train"]
    assert PRESETS["nlm"].budget.steps(train.batch_size * model.context_length) == run["budget"]["steps"]


def test_the_book_s_preset_is_the_winner_of_the_search(script):
    won = {key: value for key, value in script("recipe")["WINNER"].items() if key != "part"}
    assert dataclasses.replace(TrainConfig(), **won) == preset("nlm", 4096, {})[1]


def test_overrides_reach_the_model_and_the_training():
    before = {name: (dict(p.model), dict(p.train)) for name, p in PRESETS.items()}
    model, train = preset("tiny", 300, {"n_layers": 3, "lr": 0.01})
    assert (model.n_layers, train.lr) == (3, 0.01)
    assert {name: (p.model, p.train) for name, p in PRESETS.items()} == before


@pytest.mark.parametrize("batch_size", range(1, 30))
def test_a_batch_size_alone_is_enough(batch_size):
    _, train = preset("tiny", 300, {"batch_size": batch_size})
    assert train.batch_size == batch_size
    assert train.batch_size % train.micro_batch_size == 0
    assert train.micro_batch_size == max(size for size in range(1, 5) if batch_size % size == 0)


@pytest.mark.parametrize("batch_size", [0, -8, "many", 2.5, None, True, [8]])
def test_a_bad_batch_size_is_named(batch_size):
    with pytest.raises(UserError, match=r"^batch_size must be"):
        preset("tiny", 300, {"batch_size": batch_size})


def test_a_batch_size_that_does_not_fit_the_micro_batch_size():
    with pytest.raises(UserError, match=r"^batch_size 8 is not divisible by micro_batch_size 3$"):
        preset("tiny", 300, {"batch_size": 8, "micro_batch_size": 3})


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("huge", {}, "unknown preset 'huge'; there are: nlm, tiny"),
        ("tiny", {"layers": 2}, "'layers' is not a setting that can be given here; there are: .*n_layers"),
        ("tiny", {"vocab_size": 300}, r"'vocab_size' is not a setting .* \(it is the tokenizer's\)"),
        ("tiny", {"n_heads": 5}, "d_model 64 is not divisible by n_heads 5"),
    ],
)
def test_unknown_presets_and_settings(name, overrides, message):
    with pytest.raises(UserError, match=message):
        preset(name, 300, overrides)


# ---- KEY=VALUE


def test_words_become_values():
    words = ["lr=0.001", "n_layers=2", "optimizer=adamw", "compile=true", "device=", "note=a=b", 'name="7"']
    assert parse_overrides(words) == {
        "lr": 0.001,
        "n_layers": 2,
        "optimizer": "adamw",
        "compile": True,
        "device": "",
        "note": "a=b",
        "name": "7",
    }


@pytest.mark.parametrize("word", ["lr", "=1", "", "lr:1"])
def test_a_word_of_another_form_is_refused(word):
    with pytest.raises(UserError, match="is not of the form KEY=VALUE"):
        parse_overrides([word])


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(TrainConfig)]), st.text()))
def test_any_text_is_a_value_or_a_clear_error(given_words):
    overrides = parse_overrides([f"{key}={value}" for key, value in given_words.items()])
    try:
        preset("tiny", 300, overrides)
    except UserError as error:
        assert any(key in str(error) for key in given_words)


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 100_000, "1e999", "NaN", "1" * 400])
def test_numbers_beyond_all_bounds_are_a_clear_error(value):
    with pytest.raises(UserError, match=r"^lr must be"):
        preset("tiny", 300, parse_overrides([f"lr={value}"]))
