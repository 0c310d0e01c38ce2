"""Options and checks that the examples share. Not a program."""

from __future__ import annotations

import argparse

HELP = {
    "batch": "number of rows of text in a batch",
    "hidden": "hidden size of a layer",
    "layers": "number of layers",
    "window": "number of characters of a row in a step",
}
"""Descriptions of the options that the examples of a character-level LSTM share."""


def count(text):
    """Read an integer that is at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return value


def gpu_problem():
    """Return why cuDNN cannot be used on CuPy arrays, or an empty text if it can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error})"
    return "" if cupy.cuda.is_available() else "CuPy finds no GPU"
