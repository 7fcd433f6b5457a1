"""Post-processing of embeddings and scores: normalization, dimensions and probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError

Float32 = npt.NDArray[np.float32]


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raise RequestError if embeddings of `width` numbers cannot be truncated to `dimensions`."""
    if dimensions is None:
        return
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= width:
        raise RequestError(
            f"dimensions is {dimensions!r}; expected an integer from 1 to {width} for this model",
            field="dimensions",
            limit=width,
        )


def truncate_embeddings(rows: Float32, dimensions: int | None, normalize: bool) -> Float32:
    """Return the leading dimensions of each row, scaled to length 1 if `normalize` is set. Zero rows stay zero."""
    rows = rows[:, :dimensions]
    if not normalize:
        return np.ascontiguousarray(rows)
    lengths = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=-1, keepdims=True))
    out: Float32 = (rows / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)
    return out


def rms_normed(rows: Float32, weight: Float32, eps: float) -> Float32:
    """Return the rows, normalized as by the operation rms_norm."""
    mean_square = np.mean(rows.astype(np.float64) ** 2, axis=-1, keepdims=True)
    normed: Float32 = rows * (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)
    return normed * weight


def sigmoid(rows: Float32) -> Float32:
    """Return the sigmoid of scores: probabilities from 0 to 1."""
    wide = rows.astype(np.float64)
    out: Float32 = (0.5 * (1.0 + np.tanh(0.5 * wide))).astype(np.float32)  # exp would overflow
    return out


def softmax(rows: Float32) -> Float32:
    """Return the softmax of each row: probabilities that sum to 1."""
    wide = np.exp(rows.astype(np.float64) - rows.max(axis=-1, keepdims=True))
    out: Float32 = (wide / wide.sum(axis=-1, keepdims=True)).astype(np.float32)
    return out
