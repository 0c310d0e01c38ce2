"""``python -m dnnffi``."""

from __future__ import annotations

import io
import sys

from dnnffi.cli import main

if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A sample of text may hold characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())
