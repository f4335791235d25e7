"""Generation: a text depends on seed, prompt, settings and weights, and on nothing else."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from nlm_core.config import ModelConfig
from nlm_core.errors import UserError
from nlm_core.generate import BATCH_SIZE, Text, begin, generate, write
from nlm_core.model import NLM
from nlm_core.sampling import Sampling, choose, gumbel_noise, narrowed, penalise, word_tokens


@pytest.fixture(params=[torch.float64, torch.float32], ids=["pytorch", "kernel"])
def model(request) -> NLM:
    """A model with large random weights, so that its logits are far from uniform."""
    torch.manual_seed(3)
    model = NLM(ModelConfig(vocab_size=512, context_length=48, d_model=32, n_layers=2, n_heads=4)).eval()
    with torch.no_grad():
        for param in model.parameters():
            param.normal_(std=0.25)
    return model.to(request.param)


PROMPTS = ["Once upon a time", "A", "The dog bit the man.", "é ☃", "\n"]


def one_by_one(model, tokenizer, prompt, count, seed, **settings) -> str:
    """The slow reference: no cache, no batch; the whole text is read again for each token."""
    sampling = Sampling(**settings)
    ids = tokenizer.encode(prompt)
    start = len(ids)
    words = word_tokens(tokenizer)
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[:, -1]
        seen = torch.zeros(1, 512, dtype=torch.bool)
        seen[0, ids] = True
        logits = penalise(logits, seen & words, sampling.repetition_penalty)
        ids.append(int(choose(logits, sampling, [seed], [len(ids)])))
    return prompt + tokenizer.decode(ids[start:])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.7, "repetition_penalty": 1.3},
    ],
)
def test_cached_and_batched_equals_uncached_one_by_one(model, tokenizer, settings):
    texts = generate(model, tokenizer, PROMPTS, max_new_tokens=12, seed=[7, 8, 9, 10, 11], **settings)
    for number, prompt in enumerate(PROMPTS):
        assert texts[number] == one_by_one(model, tokenizer, prompt, 12, 7 + number, **settings)


def test_a_text_does_not_depend_on_the_batch_or_its_row(model, tokenizer):
    alone = generate(model, tokenizer, ["The dog"], max_new_tokens=20, seed=5)
    others = [f"{word} here" for word in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"]
    for row in (0, 17, 39):
        prompts = [*others[:row], "The dog", *others[row:]]
        assert len(prompts) == 40
        assert generate(model, tokenizer, prompts, max_new_tokens=20, seed=5)[row] == alone[0]


def test_more_prompts_than_a_batch(model, tokenizer):
    prompts = ["The dog"] * (BATCH_SIZE + 2)
    texts = generate(model, tokenizer, prompts, max_new_tokens=3, seed=list(range(len(prompts))))
    assert texts[-1] == generate(model, tokenizer, ["The dog"], max_new_tokens=3, seed=BATCH_SIZE + 1)[0]
    assert len(set(texts)) > 10


def test_a_text_does_not_depend_on_the_threads(model, tokenizer):
    before = torch.get_num_threads()
    try:
        texts = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            texts.append(generate(model, tokenizer, PROMPTS, max_new_tokens=25, seed=1))
    finally:
        torch.set_num_threads(before)
    assert texts[0] == texts[1]


def test_sampled_frequencies_match_the_softmax():
    """20,000 draws against softmax(logits / T), by a chi-square test."""
    random = np.random.default_rng(0)
    for temperature in (0.5, 1.0, 1.5):
        logits = torch.from_numpy(random.normal(size=12))
        draws = 20_000
        tokens = choose(
            logits.expand(draws, 12), Sampling(temperature), seeds=list(range(draws)), positions=[3] * draws
        )
        observed = np.bincount(tokens.numpy(), minlength=12)
        expected = (logits / temperature).softmax(-1).numpy() * draws
        assert chisquare(observed, expected).pvalue > 0.001


def test_draws_at_different_positions_of_one_text_are_independent():
    """Pairs of draws at neighbouring positions are uniform over the square."""
    flat = torch.zeros(4000, 8, dtype=torch.float64)
    first = choose(flat, Sampling(1.0), list(range(4000)), [10] * 4000)
    second = choose(flat, Sampling(1.0), list(range(4000)), [11] * 4000)
    observed = np.bincount((first * 8 + second).numpy(), minlength=64)
    assert chisquare(observed).pvalue > 0.001


def test_the_noise_is_gumbel_and_a_function_of_seed_and_position():
    noise = gumbel_noise(0, 0, 100_000)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)  # Euler's constant
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.02)
    assert (gumbel_noise(0, 0, 8) == noise[:8]).all()
    assert not (gumbel_noise(0, 1, 8) == noise[:8]).any()
    assert not (gumbel_noise(1, 0, 8) == noise[:8]).any()


def test_top_k_and_top_p_keep_the_right_tokens():
    logits = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log()
    assert narrowed(logits, 2, None).isfinite().tolist() == [[False, True, True, False]]
    assert narrowed(logits, 9, 1.0).isfinite().all()
    # 0.4 + 0.3 is the smallest set that holds at least 0.5.
    assert narrowed(logits, None, 0.5).isfinite().tolist() == [[False, True, True, False]]
    assert narrowed(logits, None, 0.05).isfinite().tolist() == [[False, True, False, False]]
    assert narrowed(logits, 3, 0.75).isfinite().tolist() == [[False, True, True, False]]


def test_repetition_penalty_follows_ctrl_and_spares_spaces_and_punctuation(tokenizer):
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    assert penalise(logits, torch.tensor([[True, True, False]]), 2.0).tolist() == [[1.0, -4.0, 1.0]]
    words = word_tokens(tokenizer)
    for text, expected in ((" ", False), ("\n", False), (".", False), ("a", True), ("7", True)):
        assert bool(words[tokenizer.encode(text)[0]]) is expected


def test_temperature_0_is_greedy_and_ignores_the_seed(model, tokenizer):
    a, b = (generate(model, tokenizer, ["The"], max_new_tokens=10, temperature=0, seed=seed) for seed in (0, 1))
    assert a == b


def test_a_seed_may_be_a_numpy_integer(model, tokenizer):
    plain = generate(model, tokenizer, ["The"], max_new_tokens=5, seed=3)
    assert generate(model, tokenizer, ["The"], max_new_tokens=5, seed=np.int64(3)) == plain


def test_the_smallest_temperature_is_greedy(model, tokenizer):
    greedy = generate(model, tokenizer, ["The"], max_new_tokens=10, temperature=0)
    assert generate(model, tokenizer, ["The"], max_new_tokens=10, temperature=1e-310) == greedy


def test_seeds_differ(model, tokenizer):
    assert len(set(generate(model, tokenizer, ["The"] * 6, max_new_tokens=10, seed=range(6)))) == 6


def test_a_stop_string_ends_a_text_and_is_left_out(model, tokenizer):
    whole = generate(model, tokenizer, ["The"], max_new_tokens=25, seed=2)[0]
    for stop in re.findall("[a-z]{3}", whole[3:])[1:4]:
        text = generate(model, tokenizer, ["The"], max_new_tokens=25, seed=2, stop=stop)[0]
        assert text == whole[: whole.index(stop, len("The"))]
    assert generate(model, tokenizer, ["The"], max_new_tokens=25, seed=2, stop=["\0never", "Th\0"])[0] == whole


def test_a_stop_string_in_the_prompt_does_not_count(model, tokenizer):
    text = generate(model, tokenizer, ["The"], max_new_tokens=5, seed=2, stop="The")[0]
    assert len(text) > len("The")


def test_the_limit_of_the_context_is_said(model, tokenizer):
    prompt_tokens = len(tokenizer.encode("The dog"))
    with pytest.warns(UserWarning, match="1 of 1 texts stopped at 48 tokens"):
        generate(model, tokenizer, ["The dog"], max_new_tokens=100, seed=0)
    texts = begin(model, tokenizer, ["The dog"])
    for _ in write(model, tokenizer, texts, max_new_tokens=48 - prompt_tokens):
        pass
    assert len(texts[0].ids) == 48
    assert texts[0].ended == "length"


def test_a_prompt_may_fill_the_context_but_for_one_token(model, tokenizer):
    prompt = "a " * 24
    assert len(tokenizer.encode(prompt[:-1])) == 47
    assert generate(model, tokenizer, [prompt[:-1]], max_new_tokens=1, seed=0)[0].startswith(prompt[:-1])
    with pytest.raises(UserError, match=r"48 tokens.*reads 48 at most"):
        generate(model, tokenizer, ["fine", prompt], max_new_tokens=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": [""]}, "empty"),
        ({"prompts": "The dog"}, "list of texts"),
        ({"prompts": ["\ud800"]}, "surrogate"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": [1, 2]}, "1 prompts but 2 seeds"),
        ({"stop": ""}, "stop"),
    ],
)
def test_bad_input(model, tokenizer, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(model, tokenizer, **{"prompts": ["The"], **settings})
    assert "\n" not in str(caught.value)


def test_no_prompts_no_texts(model, tokenizer):
    assert generate(model, tokenizer, []) == []


def test_the_model_stays_in_the_mode_it_was_in(model, tokenizer):
    model.train()
    generate(model, tokenizer, ["The"], max_new_tokens=2)
    assert model.training


def test_what_is_shown_while_writing_never_changes_afterwards():
    """Half a character or half a stop string is held back."""
    pieces = [b"caf", b"\xc3", b"\xa9 <", b"|end", b" <|e", b"nd|>", b"more"]
    text = Text("P: ", 0, [], [b"<|end|>"])
    shown = []
    for piece in pieces[:6]:
        text.add(0, piece, 100, 100)
        shown.append(text.settled)
    assert shown == ["P: caf", "P: caf", "P: café ", "P: café ", "P: café <|end ", "P: café <|end "]
    assert text.ended == "stop"
    assert text.text == "P: café <|end "
