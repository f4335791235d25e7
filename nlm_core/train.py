"""The training loop. A run that was killed at any moment and resumed ends with the same weights, bit for bit.

That holds on one machine with one number of threads and eager code, because each step depends on nothing but the
weights, the optimizers' state, the seed, the number of the step, and the length of the run: the batch, the dropout
masks and the learning rate are functions of those. (A budget in minutes has a length once it was turned into steps.)
It holds for several processes as well, if there are as many as before.
"""

import contextlib
import dataclasses
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from nlm_core.batches import Windows
from nlm_core.checkpoint import load_optimizer, save_checkpoint, step_folders
from nlm_core.config import Budget, ModelConfig, TrainConfig
from nlm_core.data import Corpus
from nlm_core.distributed import Team
from nlm_core.errors import Diverged, UserError
from nlm_core.files import shown
from nlm_core.hardware import pick_device, pick_precision
from nlm_core.interrupt import Interrupt
from nlm_core.loss import bits_per_byte, stream_nats
from nlm_core.model import NLM
from nlm_core.optim import learning_rate, make_optimizers, restore_state, state_arrays
from nlm_core.runfolder import RunFolder, is_doubling
from nlm_core.step import accumulate_gradients, update

QUIET = 30  # seconds after which a run without a terminal says again where it is
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
        team: the processes that train together; alone if left out.

    Raises:
        UserError: the text is too short, the device is not there, or there are more processes than micro-batches.
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
        team: Team | None = None,
    ):
        self.team = team or Team()
        self.interrupt = Interrupt(twice_raises=self.team.world_size == 1)
        self.folder, self.corpus, self.say, self.progress = folder, corpus, say, progress and self.team.first
        self.device = pick_device(config.device)
        self.config = dataclasses.replace(config, precision=pick_precision(config.precision, self.device))
        self.budget, self.resume = budget, resume
        self.windows = Windows(corpus.train, model_config.context_length, self.config.seed)
        self.tokens_per_step = self.config.batch_size * model_config.context_length
        self.total = budget.steps(self.tokens_per_step)
        self.team.require_work_for_all(self.config.batch_size, self.config.micro_batch_size)
        torch.manual_seed(self.config.seed)
        self.model = NLM(model_config, dropout=self.config.dropout).to(self.device)
        if self.config.compile:
            # Only the blocks: a whole compiled model was seen to end with other weights in each of two equal runs.
            for block in self.model.blocks:
                block.compile()
        self.optimizers = make_optimizers(self.model, self.config)
        self.step, self.elapsed = 0, 0.0
        self.loss_sum, self.loss_count = 0.0, 0  # since the last line of the log
        self.metrics: dict[str, Any] = {}
        self.unsaved = False
        self.record: dict[str, Any] = {}
        self._started, self._reported_at, self._said_at = 0.0, (0, 0.0), 0.0

    @property
    def stop_signal(self) -> int | None:
        """The signal that ended the run early, if one did."""
        return self.interrupt.signal

    # ---- the state that a checkpoint holds

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        self.model.load_state_dict({name: torch.from_numpy(value) for name, value in checkpoint["params"].items()})
        restore_state(self.model, self.optimizers, load_optimizer(checkpoint))
        self.step, self.metrics, training = checkpoint["step"], checkpoint["metrics"], checkpoint["training"]
        self.elapsed, self.loss_sum, self.loss_count = (training[k] for k in ("elapsed", "loss_sum", "loss_count"))

    def _save(self) -> None:
        self.team.require_equal_weights(self.model)
        self.unsaved = False
        if not self.team.first:
            return
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
        self.folder.prune(self.config.keep, self.config.keep_doublings)

    # ---- the run

    def run(self) -> Path:
        """Train until the budget is used up or a signal asks to stop; return the last checkpoint's folder.

        Raises:
            UserError: the folder is in use, or holds a run that was not to be resumed.
            Diverged: the loss is not a finite number; the last good checkpoint stays.
        """
        self.team.use(self.device)
        with contextlib.ExitStack() as held:
            self.team.broadcast(lambda: self._open(held))
            self.step = self.team.begin_alike(self.model, self.optimizers, self.step)
            with self.interrupt.listening():
                self._loop()
        return self.folder.step_folder(self.step)

    def _open(self, held: contextlib.ExitStack) -> None:
        """Take the folder, restore what it holds, and write what this run is."""
        held.enter_context(self.folder.locked())
        if self.folder.started() and not self.resume:
            raise UserError(f"{shown(self.folder.path)} already holds a run")
        if checkpoint := self.folder.newest({**self.model.config.to_dict(), **self.config.to_dict()}, self.say):
            self._restore(checkpoint)
            self.say(f"going on from step {self.step:,}")
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
        self.record = self.folder.record(
            model=self.model.config.to_dict(),
            train=self.config.to_dict(),
            budget={"unit": self.budget.unit, "amount": self.budget.amount, "steps": self.total},
            data=self.corpus.manifest,
            here={"step": self.step, "device": self.device.type, "processes": self.team.world_size},
            say=self.say,
        )
        self.folder.write_config(self.record)
        # A checkpoint that remembers losses not yet reported was saved before the line of its step was written
        # (a signal came during the evaluation); if a later moment wrote that line, it is about to be written again.
        if damaged_log := self.folder.cut_log(self.step - 1 if self.loss_count else self.step):
            self.say(f"log.csv was damaged; it is now {shown(damaged_log)}, and a new log begins")

    def _loop(self) -> None:
        self.model.train()
        self._started = time.monotonic() - self.elapsed
        first_step, speed_from = self.step, None
        self._reported_at, self._said_at = (self.step, self.elapsed), self.elapsed
        with tqdm(
            total=self.total,
            initial=self.step,
            unit="step",
            disable=None if self.progress and sys.stderr is not None else True,
            file=sys.stderr,
        ) as bar:
            while True:
                if self.team.first and self.loss_count and self._report_is_due():
                    self._report(bar)
                leave = self._stopping() or self.step == self.total
                if (leave or self._save_is_due()) and self.team.broadcast(lambda: self.unsaved):
                    self._save()
                if leave:
                    self.team.barrier()  # for the checkpoint: the launcher ends the rest when one process has ended
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

    def _stopping(self) -> bool:
        """Whether any process was asked to stop."""
        asked = self.team.any(self.interrupt.signal is not None)
        if asked and self.interrupt.signal is None:
            self.interrupt.signal = signal.SIGTERM
        return asked

    def _tick(self) -> None:
        self.elapsed = time.monotonic() - self._started

    def _evaluation_is_due(self) -> bool:
        return self.step % self.config.eval_every == 0 or self.step == self.total

    def _save_is_due(self) -> bool:
        return self.step % self.config.save_every == 0 or (self.config.keep_doublings and is_doubling(self.step))

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
        # No terminal: a line now and then instead.
        if self.progress and bar.disable and (self._evaluation_is_due() or self.elapsed - self._said_at >= QUIET):
            self._said_at = self.elapsed
            validation = f", validation {losses['validation_loss']}" if losses["validation_loss"] else ""
            self.say(f"step {self.step:,} of {self.total or '?'}: loss {loss:.3f}{validation}, {speed:,.0f} tokens/s")

    def _train_step(self) -> float:
        """One update of the weights; returns the mean loss of the batch in nats per token."""
        batch = torch.from_numpy(self.windows.batch(self.step, self.config.batch_size))  # (B, T + 1)
        parts = batch.split(self.config.micro_batch_size)
        loss = accumulate_gradients(self.model, parts, self.config, self.step, self.team.share(len(parts)))
        loss = self.team.all_reduce_gradients(self.model, loss)
        try:
            update(self.model, self.optimizers, self.config, self.step, self.total, loss)
        except Diverged as error:
            kept = step_folders(self.folder.path)
            raise Diverged(
                f"{error}, so the run stops; "
                + (f"the last good checkpoint stays in {shown(kept[-1])}" if kept else "there is no checkpoint yet")
                + ". A smaller lr usually helps: start again with another --out"
            ) from None
        return loss

    def _fix_total(self, first_step: int, speed_from: tuple[int, float] | None) -> None:
        """Turn a budget in minutes into steps, once the speed is known."""
        seconds = self.budget.amount * 60
        enough = self.step - first_step >= MEASURED_STEPS or self.elapsed >= seconds / 10
        known = speed_from is not None and self.step > speed_from[0] and enough
        if not self.team.broadcast(lambda: known):
            return
        # From here on the learning rate may depend on the run's length, so a resumed run must never begin before here.
        self._save()
        per_step = (self.elapsed - speed_from[1]) / (self.step - speed_from[0])
        self.total = self.team.broadcast(lambda: self.step + max(0, round((seconds - self.elapsed) / per_step)))
        if self.team.first:
            self.record["budget"]["steps"] = self.total
            self.folder.write_config(self.record)
            self.say(f"{self.budget.amount:g} minutes are {self.total:,} steps at {per_step:.3g} seconds a step")

    def _evaluate(self) -> dict[str, Any] | None:
        """Score the first `eval_tokens` of the choosing half; None if a signal asks to stop meanwhile."""
        ids = np.asarray(self.corpus.choose[: self.config.eval_tokens + 1])
        # Little enough to notice a signal soon, enough for all threads.
        at_once = 4 * torch.get_num_threads() * self.config.micro_batch_size * self.model.config.context_length
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
