"""How alike the rows of a table are."""

import numpy as np
from jaxtyping import Float


def cosines(table: Float[np.ndarray, "N C"], centred: bool = False) -> Float[np.ndarray, "N N"]:
    """The cosine of every pair of rows, in float64.

    Args:
        table: a row for each word or position.
        centred: subtract the mean row first. A direction that all rows share makes all of them look alike
            (anisotropy, Ethayarajh 2019); without it, the cosines say how rows differ from the average row.
    """
    rows = table.astype(np.float64)
    if centred:
        rows = rows - rows.mean(axis=0)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T
