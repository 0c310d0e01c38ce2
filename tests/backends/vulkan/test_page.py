"""Test that the code of docs/vulkan.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[3] / "docs" / "vulkan.md"


def test_the_code_of_the_page_runs(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["y"].shape == (1, 1, 32)
    assert np.abs(names["h_n"]).max() > 0.01
    assert (tmp_path / "network.npz").exists()
