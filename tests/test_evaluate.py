"""The matrix of texts: what is in it, what is counted, and that it survives being written and read."""

import gzip
import json

import numpy as np
import pytest

from nlm_core.errors import UserError
from nlm_core.evaluate import POSTS, evaluate_generation, read_prompts, reference, settings_named, text_seed
from nlm_core.generate import generate
from nlm_core.matrix import Matrix, complete, from_units, read_matrix, to_units, write_matrix
from nlm_core.metrics import measure
from nlm_core.sampling import Sampling
from nlm_core.tables import generation_table

PROMPTS = ["Once", "The dog", "A"]


@pytest.fixture
def found(tiny_model, tokenizer):
    return evaluate_generation(
        tiny_model, tokenizer, PROMPTS, settings_named(["greedy", "1.5"]), [3, 5], max_new_tokens=12
    )


def test_each_text_is_what_generate_writes(found, tiny_model, tokenizer):
    for n, temperature in enumerate((0.0, 1.5)):
        for p, prompt in enumerate(PROMPTS):
            for s, seed in enumerate((3, 5)):
                (text,) = generate(tiny_model, tokenizer, [prompt], 12, temperature, seed=3 * seed + p)
                assert prompt + found.texts[n][p][s] == text
                for name, value in measure(found.texts[n][p][s], prompt=prompt).items():
                    assert found.metrics[name][n, p, s] == pytest.approx(value, nan_ok=True)
    assert found.texts[0][0][0] == found.texts[0][0][1]  # greedy: the seed does not matter


def test_by_default_these_are_the_forty_of_the_posts(tiny_model, tokenizer):
    found = evaluate_generation(tiny_model, tokenizer, max_new_tokens=1)
    assert found.settings == list(POSTS) == ["0.5", "0.8", "1.0", "1.2"]
    assert np.shape(found.texts) == (4, 10, 1)
    assert found.prompts[:3] == ["Once upon a time", "Once fox Freddy", "Two little birds"]


def test_settings_have_names_or_are_temperatures():
    assert settings_named(["top-p-0.9", "0.7"]) == {"top-p-0.9": Sampling(1.0, top_p=0.9), "0.7": Sampling(0.7)}
    with pytest.raises(UserError, match="no setting 'warm'"):
        settings_named(["warm"])
    with pytest.raises(UserError, match=r"must be 0 .greedy. or more"):
        settings_named(["-1"])


def test_no_two_texts_share_their_noise():
    seeds = [text_seed(seed, prompt, 10) for seed in range(3) for prompt in range(10)]
    assert len(set(seeds)) == 30
    assert text_seed(0, 0, 10) == 0


def by_hand():
    """Two settings, three prompts, two seeds; the second prompt has nothing to count under the second setting."""
    values = np.array([[[1.0, 3.0], [5.0, 5.0], [0.0, 2.0]], [[0.0, np.nan], [np.nan, np.nan], [2.0, 4.0]]])
    texts = [[[f"{n}{p}{s}" for s in range(2)] for p in range(3)] for n in range(2)]
    return Matrix(["a", "b"], ["x", "y", "z"], [0, 1], texts, {"m": values})


def test_means_leave_out_what_one_setting_can_not_count():
    found = by_hand()
    assert np.array_equal(found.by_prompt("m"), [[2, 5, 1], [0, np.nan, 3]], equal_nan=True)
    assert complete(found.by_prompt("m")).tolist() == [[2, 0], [1, 3]]
    assert found.means("m").tolist() == [1.5, 1.5]
    gap, low, high = found.difference("m", "a", "b")
    assert (gap, low, high) == (0, -2, 2)
    assert found.summary()["m"]["b"]["mean"] == 1.5
    assert found.summary()["m"]["b"]["prompts"] == 2
    assert "m (2 prompts)" in generation_table(found)


def test_settings_are_compared_on_the_same_prompts():
    rng = np.random.default_rng(0)
    hard = rng.normal(10, 5, size=(1, 40, 1))  # prompts differ much
    values = np.concatenate([hard, hard + 0.5 + rng.normal(0, 0.1, hard.shape)])  # settings hardly do
    prompts = [str(number) for number in range(40)]
    found = Matrix(["a", "b"], prompts, [0], [[[""]] * 40] * 2, {"m": values})
    gap, low, high = found.difference("m", "b", "a", draws=1000)
    assert 0.4 < low < gap < high < 0.6
    ends = found.intervals("m")
    assert ends[1][0] > ends[0][1]  # apart, their intervals overlap


def test_nothing_to_count_anywhere_is_left_out():
    found = Matrix(["a"], ["x", "y"], [0], [[["", ""]]], {"m": np.full((1, 2, 1), np.nan), "n": np.ones((1, 2, 1))})
    assert set(found.summary()) == {"n"}
    assert np.isnan(found.means("m")).all()
    assert "1.00 (1.00 to 1.00)" in generation_table(found)


def test_one_prompt_has_no_interval():
    found = Matrix(["a"], ["x"], [0], [[["t"]]], {"n": np.ones((1, 1, 1))})
    assert found.summary() == {"n": {"a": {"mean": 1.0, "prompts": 1, "interval": None}}}


def test_written_and_read_it_is_the_same(found, tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    write_matrix(path, found)
    again = read_matrix(path)
    assert (again.settings, again.prompts, again.seeds, again.texts) == (
        found.settings,
        found.prompts,
        found.seeds,
        found.texts,
    )
    for name, values in found.metrics.items():
        assert np.allclose(again.metrics[name], values, atol=1e-6, equal_nan=True)
    first = path.read_bytes()
    write_matrix(path, again)
    assert path.read_bytes() == first  # no time stamp, no rounding of what is rounded


def test_what_was_counted_without_the_texts():
    found = by_hand()
    again = from_units(to_units(found))
    assert again.settings == ["a", "b"]
    assert np.array_equal(again.by_prompt("m"), found.by_prompt("m"), equal_nan=True)
    assert again.difference("m", "a", "b") == found.difference("m", "a", "b")
    joined = from_units({**to_units(found), "m, other": np.array([7.0, 8.0, 9.0]), "n, a": np.zeros(3)})
    assert joined.settings == ["a", "b", "other"]
    assert set(joined.metrics) == {"m"}  # the others were not counted under each
    assert joined.means("m").tolist() == [1.5, 1.5, 8]


def test_a_missing_file_is_not_called_damaged(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_matrix(tmp_path / "none.jsonl.gz")


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", *map(gzip.compress, (b"", b'{"setting": 1}', b"[1]", b"3", b'{"setting": [], "prompt": 1}'))],
)
def test_a_damaged_file_is_one_line(content, tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|empty"):
        read_matrix(path)


def test_rows_in_another_order_are_damaged(found, tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    write_matrix(path, found)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(gzip.compress(b"\n".join(lines)))
    with pytest.raises(UserError, match="damaged"):
        read_matrix(path)


def test_prompts_are_the_lines_of_a_file(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffOnce upon\r\n\r\nThe\u2028dog\nOnce upon\n".encode())
    assert read_prompts(path) == ["Once upon", "The\u2028dog"]


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_written(tiny_model, tokenizer, monkeypatch):
    monkeypatch.setattr("nlm_core.evaluate.write", lambda *_: pytest.fail("texts were written"))
    with pytest.raises(UserError, match="a prompt has"):
        evaluate_generation(tiny_model, tokenizer, [*map(str, range(70)), "Once upon a time " * 99])


def test_a_file_that_lacks_texts_is_damaged(found, tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    write_matrix(path, found)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    path.write_bytes(gzip.compress(b"\n".join(lines[:-1])))
    with pytest.raises(UserError, match="damaged"):
        read_matrix(path)


def test_the_reference_is_the_story_itself(tokenizer):
    stories = ["The dog ran. The dog ran home.<|endoftext|>\n", "A cat sat.<|endoftext|>\n"]
    found = reference(tokenizer, stories, ["The dog", "A cat"], length=4)
    assert found.settings == ["reference"]
    for story, prompt, (text,) in zip(stories, found.prompts, found.texts[0], strict=True):
        assert story.startswith(prompt + text)
        assert len(tokenizer.encode(text)) == 4
    with pytest.raises(UserError, match="does not begin with"):
        reference(tokenizer, stories, ["A cat", "The dog"])


@pytest.mark.parametrize("missing", ["prompts", "settings", "seeds"])
def test_nothing_to_write_is_refused(missing, tiny_model, tokenizer):
    given = {"prompts": ["A"], "settings": settings_named(["1.0"]), "seeds": [0]}
    given[missing] = type(given[missing])()
    with pytest.raises(UserError, match="at least one prompt"):
        evaluate_generation(tiny_model, tokenizer, **given)


def test_lines_are_json(found, tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    write_matrix(path, found)
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert len(rows) == 2 * 3 * 2
    assert {"setting", "prompt", "seed", "text", "repeated-2", "separator"} <= set(rows[0])
