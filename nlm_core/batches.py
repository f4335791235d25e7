"""Which windows of the training text each step reads: a function of the seed and the step alone."""

import numpy as np

from nlm_core.errors import UserError


class Windows:
    """Non-overlapping windows over a stream of tokens, in an order that is shuffled anew for each epoch.

    Each epoch also starts at another offset, so that the windows' borders fall on other tokens. Nothing is drawn from a
    running generator: any step's batch can be had at once, which is what makes resuming exact.

    Args:
        tokens: (N,) the stream, for example a memory map.
        context_length: T; a window has T inputs and, shifted by one, T targets.
        seed: of the order.

    Raises:
        UserError: the stream has fewer than T + 1 tokens.
    """

    def __init__(self, tokens: np.ndarray, context_length: int, seed: int):
        self.tokens, self.context_length, self.seed = tokens, context_length, seed
        spare = len(tokens) - 1 - context_length
        if spare < 0:
            raise UserError(
                f"the training text has {len(tokens):,} tokens, fewer than one window needs "
                f"({context_length + 1:,}); add more text, or train with a smaller context_length"
            )
        self.offsets = min(context_length, spare + 1)
        self.per_epoch = (len(tokens) - self.offsets) // context_length
        self._epoch = -1

    def _starts_of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            random = np.random.default_rng([self.seed, epoch])
            offset = random.integers(self.offsets)
            self._starts = offset + self.context_length * random.permutation(self.per_epoch)
            self._epoch = epoch
        return self._starts

    def batch(self, step: int, batch_size: int) -> np.ndarray:
        """Return the windows of a step, counted from 0: int64 (batch_size, T + 1)."""
        rows = []
        for number in range(step * batch_size, (step + 1) * batch_size):
            start = self._starts_of(number // self.per_epoch)[number % self.per_epoch]
            rows.append(self.tokens[start : start + self.context_length + 1])
        return np.stack(rows).astype(np.int64)
