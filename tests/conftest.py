"""Hypothesis profiles: ``ci`` unless HYPOTHESIS_PROFILE names ``thorough``; ``--record``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test reads what another run has measured, or leaves anything behind.
os.environ["DNNFFI_CACHE_DIR"] = "off"

# The same examples in every run, and no failure because a machine is slow.
settings.register_profile(
    "ci",
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile(
    "thorough",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=2000,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser):
    parser.addoption(
        "--record", action="store_true", help="write what the run showed to docs/verification"
    )
