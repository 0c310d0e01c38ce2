"""``python -m dnnffi``."""

from __future__ import annotations

import sys

from dnnffi.cli import script

if __name__ == "__main__":
    sys.exit(script("python -m dnnffi"))
