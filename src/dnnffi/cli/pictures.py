"""Random pictures for the demo: each has one noisy shape for a network to classify."""

from __future__ import annotations

from typing import Any

import numpy as np

SHAPES = ("disc", "ring", "square", "cross", "triangle", "stripes")

_Floats = np.ndarray[Any, np.dtype[np.float32]]
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


def draw_pictures(
    count: int, size: int, noise: float, rng: np.random.Generator
) -> tuple[_Floats, _Numbers]:
    """Return ``count`` pictures [N, 1, size, size] and the numbers of their shapes in `SHAPES` [N].

    Each shape has a random position, size, rotation, and contrast from 0.5 to 1. ``noise`` is the
    standard deviation of the noise that is added to each pixel.
    """
    numbers = rng.integers(0, len(SHAPES), count)
    middle_x, middle_y = rng.uniform(-0.25, 0.25, (2, count, 1, 1))
    radius = rng.uniform(0.45, 0.75, (count, 1, 1))
    angle = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    axis = np.linspace(-1, 1, size)
    x, y = axis[None, None, :] - middle_x, axis[None, :, None] - middle_y
    # Coordinates in which the shape is upright and extends from -1 to 1.
    u = (np.cos(angle) * x + np.sin(angle) * y) / radius
    v = (np.cos(angle) * y - np.sin(angle) * x) / radius
    distance = np.hypot(u, v)
    inside = np.select(
        [numbers[:, None, None] == number for number in range(len(SHAPES))],
        [
            distance < 0.8,
            (distance > 0.6) & (distance < 1),
            np.maximum(abs(u), abs(v)) < 0.7,
            (np.minimum(abs(u), abs(v)) < 0.25) & (np.maximum(abs(u), abs(v)) < 1),
            (v > -0.5) & (v < 1 - 3**0.5 * abs(u)),
            (np.cos(3 * np.pi * u) > 0) & (distance < 1),
        ],
    )
    pictures = inside * rng.uniform(0.5, 1, (count, 1, 1))
    pictures += rng.normal(0, noise, pictures.shape)
    return pictures[:, None].astype(np.float32), numbers
