"""The training loop. A run that was killed at any moment and resumed ends with the same weights, bit for bit.

That holds on one machine with one number of threads and eager code, because each step depends on nothing but the
weights, the optimizers' state, the seed, the number of the step, and the length of the run: the batch, the dropout
masks and the learning rate are functions of those. (A budget in minutes has a length once it was turned into steps.)
"""

import contextlib
import dataclasses
import hashlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from nlm_core.batches import Windows
from nlm_core.checkpoint import load_checkpoint, load_optimizer, save_checkpoint, step_folders
from nlm_core.config import Budget, ModelConfig, TrainConfig
from nlm_core.data import Corpus
from nlm_core.errors import Diverged, UserError
from nlm_core.files import shown
from nlm_core.hardware import autocast, describe, pick_device, pick_precision
from nlm_core.loss import bits_per_byte, stream_nats
from nlm_core.model import NLM
from nlm_core.optim import learning_rate, make_optimizers, restore_state, state_arrays
from nlm_core.runfolder import RunFolder

# What may differ when a run is resumed, beside the budget. Anything else would make it another run.
MAY_CHANGE = ("log_every", "eval_every", "eval_tokens", "save_every", "device")
MEASURED_STEPS = 50  # a budget in minutes is turned into steps after so many


class Trainer:
    """One run in one folder; `nlm_core.launch` makes them.

    Args:
        folder: where config.json, log.csv and checkpoints go.
        corpus: a prepared corpus.
        model_config, config: the settings; `precision` and `device` may be "auto".
        budget: how long to train.
        resume: go on with the run in the folder instead of starting one.
        say: told what a person should know.
        progress: show a progress bar when standard error is a terminal.
    """

    def __init__(
        self,
        folder: RunFolder,
        corpus: Corpus,
        model_config: ModelConfig,
        config: TrainConfig,
        budget: Budget,
        resume: bool = False,
        say: Callable[[str], None] = print,
        progress: bool = True,
    ):
        self.folder, self.corpus, self.say, self.progress = folder, corpus, say, progress
        self.device = pick_device(config.device)
        self.config = dataclasses.replace(config, precision=pick_precision(config.precision, self.device))
        self.budget, self.resume = budget, resume
        self.windows = Windows(corpus.train, model_config.context_length, self.config.seed)
        self.tokens_per_step = self.config.batch_size * model_config.context_length
        self.total = budget.steps(self.tokens_per_step)
        torch.manual_seed(self.config.seed)
        self.model = NLM(model_config, dropout=self.config.dropout).to(self.device)
        if self.config.compile:
            # Only the blocks: a whole compiled model was seen to end with other weights in each of two equal runs.
            for block in self.model.blocks:
                block.compile()
        self.optimizers = make_optimizers(self.model, self.config)
        self.step = 0
        self.elapsed = 0.0
        self.loss_sum, self.loss_count = 0.0, 0  # since the last line of the log
        self.metrics: dict[str, Any] = {}
        self.unsaved = False
        self.stop_signal: int | None = None
        self.record: dict[str, Any] = {}
        self._started = 0.0
        self._reported_at = (0, 0.0)

    # ---- the state that a checkpoint holds

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        before = checkpoint["config"].to_dict() | checkpoint["training"].get("settings", {})
        now = self.model.config.to_dict() | self.config.to_dict()
        changed = [key for key, value in before.items() if key not in MAY_CHANGE and now[key] != value]
        if changed:
            raise UserError(
                f"{shown(self.folder.config_file)} was edited: {changed[0]} is {now[changed[0]]!r}, but the run was "
                f"trained with {before[changed[0]]!r}"
            )
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in checkpoint["params"].items()})
        restore_state(self.model, self.optimizers, load_optimizer(checkpoint))
        training = checkpoint["training"]
        self.step = checkpoint["step"]
        self.elapsed = training["elapsed"]
        self.loss_sum, self.loss_count = training["loss_sum"], training["loss_count"]

    def _save(self) -> None:
        save_checkpoint(
            self.folder.step_folder(self.step),
            self.model,
            self.corpus.tokenizer,
            step=self.step,
            metrics=self.metrics,
            dtype="float32",
            optimizer=state_arrays(self.model, self.optimizers),
            training={
                "elapsed": self.elapsed,
                "loss_sum": self.loss_sum,
                "loss_count": self.loss_count,
                "settings": self.config.to_dict(),
            },
        )
        self.unsaved = False
        self.folder.prune()

    def _describe_run(self) -> dict[str, Any]:
        """The record of the run; what it began on stays, and each resumption adds a line."""
        here = {"step": self.step, "device": self.device.type, **describe()}
        before = self.folder.read_config() if self.folder.started() else {"machine": here, "resumed": []}
        changed = [key for key in here if key != "step" and here[key] != before["machine"].get(key, here[key])]
        if changed:
            self.say(f"this run began with other {' and '.join(changed)}: it will not be bit for bit the same")
        return {
            "model": self.model.config.to_dict(),
            "train": self.config.to_dict(),
            "budget": {"unit": self.budget.unit, "amount": self.budget.amount, "steps": self.total},
            "data": {
                "name": self.corpus.manifest["name"],
                "tokenizer": self.corpus.manifest["tokenizer"],
                **{part: self.corpus.manifest["maps"][part] for part in ("train", "choose")},
            },
            "machine": before["machine"],
            "resumed": before.get("resumed", []) + [here] * self.resume,
        }

    # ---- the run

    def run(self) -> Path:
        """Train until the budget is used up or a signal asks to stop; return the last checkpoint's folder.

        Raises:
            UserError: the folder is in use, or holds a run that was not to be resumed.
            Diverged: the loss is not a finite number; the last good checkpoint stays.
        """
        with self.folder.locked():
            if self.folder.started() and not self.resume:
                raise UserError(f"{shown(self.folder.path)} already holds a run")
            if step_folders(self.folder.path):
                self._restore(checkpoint := load_checkpoint(self.folder.path, self.say))
                self.metrics = checkpoint["metrics"]
                self.say(f"going on from step {self.step:,}")
                for damaged in step_folders(self.folder.path):
                    if damaged > checkpoint["path"]:
                        self.folder.discard(damaged)
            elif self.resume:
                self.say("the run has no checkpoint, so it starts again from step 0")
            if self.total is not None and self.step > self.total:
                raise UserError(f"the run has done {self.step:,} steps already, more than the {self.total:,} asked for")
            if self.budget.unit == "minutes" and self.elapsed >= 60 * self.budget.amount:
                raise UserError(
                    f"the run has used {self.elapsed / 60:.1f} minutes already, of {self.budget.amount:g}; "
                    "minutes count from its beginning"
                )
            if len(self.corpus.choose) < 2:
                self.say("there is no validation text for choices, so the log has no validation loss")
            self.record = self._describe_run()
            self.folder.write_config(self.record)
            # A checkpoint that remembers losses not yet reported was saved before the line of its step was written
            # (a signal came during the evaluation); if a later moment wrote that line, it is about to be written again.
            if damaged_log := self.folder.cut_log(self.step - 1 if self.loss_count else self.step):
                self.say(f"log.csv was damaged; it is now {shown(damaged_log)}, and a new log begins")
            with self._listening():
                self._loop()
        return self.folder.step_folder(self.step)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM ask for a stop (Python allows that in the main thread only)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {name: signal.signal(name, self._on_signal) for name in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for name, handler in handlers.items():
                signal.signal(name, handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self.stop_signal is not None:
            raise KeyboardInterrupt  # asked twice: leave at once; the last checkpoint on disk stays
        self.stop_signal = number

    def _loop(self) -> None:
        self.model.train()
        self._started = time.monotonic() - self.elapsed
        first_step, speed_from = self.step, None
        self._reported_at = (self.step, self.elapsed)
        with tqdm(
            total=self.total,
            initial=self.step,
            unit="step",
            disable=None if self.progress and sys.stderr is not None else True,
            file=sys.stderr,
        ) as bar:
            while True:
                if self.loss_count and self._report_is_due():
                    self._report(bar)
                leave = self.stop_signal is not None or self.step == self.total
                if self.unsaved and (leave or self.step % self.config.save_every == 0):
                    self._save()
                if leave:
                    return
                self.loss_sum += self._train_step()
                self.loss_count += 1
                self.step += 1
                self.unsaved = True
                self._tick()
                bar.update()
                if self.total is None:
                    # The first steps are slower than the rest: caches are cold, and blocks may be compiled.
                    if speed_from is None and self.step >= first_step + 3:
                        speed_from = (self.step, self.elapsed)
                    self._fix_total(first_step, speed_from)
                    bar.total = self.total

    def _tick(self) -> None:
        self.elapsed = time.monotonic() - self._started

    def _evaluation_is_due(self) -> bool:
        return self.step % self.config.eval_every == 0 or self.step == self.total

    def _report_is_due(self) -> bool:
        return self.step % self.config.log_every == 0 or self._evaluation_is_due()

    def _report(self, bar: tqdm) -> None:
        """Write a line of the log; a signal that comes while evaluating leaves it to the resumed run."""
        steps, seconds = self.step - self._reported_at[0], self.elapsed - self._reported_at[1]
        speed = steps * self.tokens_per_step / seconds if seconds > 0 else math.nan
        losses = {"validation_loss": "", "bits_per_byte": ""}
        if self._evaluation_is_due() and len(self.corpus.choose) >= 2:
            metrics = self._evaluate()
            self._tick()
            if metrics is None:
                return
            self.metrics = metrics
            losses = {key: f"{metrics[key]:.5f}" for key in losses}
        loss = self.loss_sum / self.loss_count
        self.folder.log(
            step=self.step,
            tokens=self.step * self.tokens_per_step,
            loss=f"{loss:.5f}",
            **losses,
            learning_rate=f"{learning_rate(self.config, self.step - 1, self.total):.6g}",
            tokens_per_second="" if math.isnan(speed) else f"{speed:.1f}",
            elapsed=f"{self.elapsed:.1f}",
        )
        self.loss_sum, self.loss_count = 0.0, 0
        self.unsaved = True
        self._reported_at = (self.step, self.elapsed)
        bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s")
        if self.progress and bar.disable and self._evaluation_is_due():  # no terminal: a line now and then instead
            validation = f", validation {losses['validation_loss']}" if losses["validation_loss"] else ""
            self.say(f"step {self.step:,} of {self.total or '?'}: loss {loss:.3f}{validation}, {speed:,.0f} tokens/s")

    def _train_step(self) -> float:
        """One update of the weights; returns the mean loss of the batch in nats per token."""
        config = self.config
        rate = learning_rate(config, self.step, self.total)
        batch = torch.from_numpy(self.windows.batch(self.step, config.batch_size)).to(self.device)  # (B, T + 1)
        parts = batch.split(config.micro_batch_size)
        loss_sum = 0.0
        for number, part in enumerate(parts):
            torch.manual_seed(_mix(config.seed, self.step, number))  # dropout's masks
            with autocast(self.device, config.precision):
                logits = self.model(part[:, :-1])  # (b, T, V)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten()) / len(parts)
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        if not (math.isfinite(loss_sum) and math.isfinite(norm.item())):
            kept = step_folders(self.folder.path)
            raise Diverged(
                f"the loss is {loss_sum} (gradient norm {norm.item()}) at step {self.step + 1:,}, so the run stops; "
                + (f"the last good checkpoint stays in {shown(kept[-1])}" if kept else "there is no checkpoint yet")
                + ". A smaller lr usually helps: start again with another --out"
            )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss_sum

    def _fix_total(self, first_step: int, speed_from: tuple[int, float] | None) -> None:
        """Turn a budget in minutes into steps, once the speed is known."""
        seconds = self.budget.amount * 60
        enough = self.step - first_step >= MEASURED_STEPS or self.elapsed >= seconds / 10
        if speed_from is None or self.step == speed_from[0] or not enough:
            return
        per_step = (self.elapsed - speed_from[1]) / (self.step - speed_from[0])
        # From here on the learning rate may depend on the run's length, so a resumed run must never begin before here.
        self._save()
        self.total = self.step + max(0, round((seconds - self.elapsed) / per_step))
        self.record["budget"]["steps"] = self.total
        self.folder.write_config(self.record)
        self.say(f"{self.budget.amount:g} minutes are {self.total:,} steps at {per_step:.3g} seconds a step")

    def _evaluate(self) -> dict[str, Any] | None:
        """Score the first `eval_tokens` of the choosing half; None if a signal asks to stop meanwhile."""
        ids = np.asarray(self.corpus.choose[: self.config.eval_tokens + 1])
        at_once = self.config.micro_batch_size * self.model.config.context_length
        nats = 0.0
        for start in range(0, len(ids) - 1, at_once):
            part = ids[start : start + at_once + 1]
            nats += float(stream_nats(self.model, part, self.config.micro_batch_size, self.config.precision).sum())
            if self.stop_signal is not None:
                return None
        target_bytes = len(self.corpus.tokenizer.decode_bytes(ids[1:]))
        return {
            "validation_loss": round(nats / (len(ids) - 1), 5),
            "bits_per_byte": round(bits_per_byte(nats, target_bytes), 5),
            "validation_tokens": len(ids) - 1,
            "validation_step": self.step,
        }


def _mix(*numbers: int) -> int:
    """One 63-bit seed from several numbers."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
