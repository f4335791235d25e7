"""How training grows with batch and context, and `nlm data prepare` with its text: ours alone, in new processes."""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.inputs import STORIES, Inputs
from benchmarks.machine import ROOT
from benchmarks.measure import say, seconds
from benchmarks.memory import in_fresh_process, peak_in_fresh_process, peak_of
from benchmarks.training import OurTraining
from nlm_core.data import prepare
from nlm_core.errors import one_line_errors
from nlm_core.tokenizer import Tokenizer

TRAINING, PREPARE = "growth of training", "growth of nlm data prepare"


def measure_training(inputs: Inputs) -> dict[str, Any]:
    """Tokens per second of a step (the median of those after the first), and its peak memory above set-up."""
    say(TRAINING)
    found = []
    for context in inputs.growth_contexts:
        for batch_size in inputs.growth_batches:
            result = peak_in_fresh_process("ours", inputs, batch_size=batch_size, context=context)
            step = statistics.median(result["step_seconds"][1:])
            speed, peak = batch_size * context / step, result["peak"] / 1e6
            say(f"    B = {batch_size}, T = {context}: {speed:,.0f} tokens/s, {peak:,.0f} MB")
            found.append({"batch_size": batch_size, "context": context, "tokens_per_second": speed, "peak_mb": peak})
    return {"row": TRAINING, "settings": OurTraining(inputs).side.settings, "table": found}


def measure_prepare(inputs: Inputs) -> dict[str, Any]:
    """MB of text per second, and peak memory above set-up. The text is data/stories.txt over and over."""
    say(PREPARE)
    found = []
    for megabytes in inputs.growth_megabytes:
        with tempfile.TemporaryDirectory(prefix="nlm-growth-") as folder:
            text = Path(folder) / "data" / "growth" / "train" / "text.txt"
            text.parent.mkdir(parents=True)
            write_stories(text, round(megabytes * 1e6))
            tokenizer = str(ROOT / "checkpoints" / inputs.checkpoint / "tokenizer.json")
            result = in_fresh_process("benchmarks.growth", root=folder, tokenizer=tokenizer)
        speed, peak = megabytes / result["seconds"], result["peak"] / 1e6
        say(f"    {megabytes:g} MB: {speed:.2f} MB/s, {peak:,.1f} MB of memory")
        found.append({"megabytes": megabytes, "megabytes_per_second": speed, "peak_mb": peak})
    return {"row": PREPARE, "text": "data/stories.txt, repeated", "table": found}


def write_stories(path: Path, size: int) -> None:
    """Write the stories over and over, `size` bytes in all but for a part of the last line."""
    stories = STORIES.read_bytes()
    whole, rest = divmod(size, len(stories))
    with open(path, "wb") as file:
        for _ in range(whole):
            file.write(stories)
        file.write(stories[: stories.rfind(b"\n", 0, rest) + 1])


def prepare_in(root: str, tokenizer: str) -> dict[str, Any]:
    os.environ["NLM_ROOT"] = root
    loaded = Tokenizer.load(tokenizer)
    took = 0.0

    def work() -> None:
        nonlocal took
        took = seconds(lambda: prepare("growth", loaded))

    return peak_of(work) | {"seconds": took}


def measure(inputs: Inputs) -> list[dict[str, Any]]:
    return [measure_training(inputs), measure_prepare(inputs)]


if __name__ == "__main__":
    with one_line_errors():
        print(json.dumps(prepare_in(**json.loads(sys.argv[1]))))
