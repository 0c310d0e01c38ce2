"""``python -m dnnffi``."""

from __future__ import annotations

import sys

from dnnffi.cli import main

if __name__ == "__main__":
    sys.exit(main())
