"""The logger ``dnnffi``: silent by default, and what it says in the order of levels."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import dnnffi
from dnnffi.log import log_measurement, logger


def test_a_program_that_configures_nothing_sees_nothing():
    code = f"""
import sys; sys.path.insert(0, {str(Path(dnnffi.__file__).parents[1])!r})
from dnnffi.log import logger
logger.error("something")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


def test_the_logger_is_named_after_the_package_and_has_no_level_of_its_own():
    assert logger is logging.getLogger("dnnffi")
    assert logger.level == logging.NOTSET
    assert logger.propagate


def test_a_measurement_is_a_line_and_its_candidates_are_details(caplog):
    times, refused = {"own 1": 0.125, "cudnn standard": 0.5}, {"own 2": "it failed"}
    with caplog.at_level(logging.DEBUG, "dnnffi"):
        log_measurement("a network", "own 1", times, refused, 0.25)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "measured 2 candidates in 0.25 s for a network: own 1 runs it"),
        ("DEBUG", "candidate own 1: 0.1250 ms a call"),
        ("DEBUG", "candidate cudnn standard: 0.5000 ms a call"),
        ("DEBUG", "candidate own 2 is not used: it failed"),
    ]
