"""The logger ``dnnffi``: measurements, choices, fallbacks, captures and compile times.

It is silent unless the program configures logging. INFO has what happens a few times in a process:
a measurement and its result, a library that is loaded, a kernel that is compiled, anything that is
given up for something slower. DEBUG adds each candidate, the choice for each plan, and captures.
Nothing is logged in a call that is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger("dnnffi")
logger.addHandler(logging.NullHandler())  # no "last resort" on stderr for a library's messages


def log_measurement(
    problem: object,
    used: str,
    times: Mapping[str, float],
    refused: Mapping[str, str],
    seconds: float,
) -> None:
    """Log the result of a measurement: ``times`` of candidates in milliseconds of a call."""
    logger.info(
        "measured %d candidates in %.2f s for %s: %s runs it", len(times), seconds, problem, used
    )
    for name, milliseconds in times.items():
        logger.debug("candidate %s: %.4f ms a call", name, milliseconds)
    for name, reason in refused.items():
        logger.debug("candidate %s is not used: %s", name, reason)
