"""The folder that dnnffi keeps between processes: tuning results and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

ENVIRONMENT_VARIABLE = "DNNFFI_CACHE_DIR"
"""Names the folder; "off" keeps nothing on disk. By default the user's cache folder."""


def cache_folder() -> Path | None:
    """Return the folder, which need not exist, or None if nothing is kept on disk.

    None also for a user without a home directory, if the environment names no folder.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return None if named == "off" else Path(named)
    try:
        folder = Path(platformdirs.user_cache_dir("dnnffi"))
    except RuntimeError:  # of a user without a home directory
        return None
    # Older versions of platformdirs return "~/.cache/dnnffi" for such a user.
    return folder if folder.is_absolute() else None
