"""``dnnffi info`` on machines of several kinds: what it says works, and what it says to install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dnnffi import wheels
from dnnffi.cli import info, main, probe
from dnnffi.installing import install_extra

H200 = probe.Device(0, "NVIDIA H200", "9.0", 140 * 2**30)
CUDNN = probe.Library("9.19.0", "/somewhere/libcudnn.so.9", "cuda-pathfinder")
MIOPEN = probe.Library("3.4.0", "/somewhere/libMIOpen.so.1", "ROCM_PATH")
MISSING = probe.Library(problem="not found", searched=("ROCM_PATH: not set",))
NO_GPU = probe.Devices(problem="CUDA's driver was not found")
CUPY = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(is_hip=False)))


@pytest.fixture
def machine(monkeypatch):
    """Set what is found on a machine, by name; by default nothing but NumPy."""

    def describe(
        *, cupy="", cudnn=MISSING, nvrtc=MISSING, miopen=MISSING, devices=NO_GPU, wheels_=(), **more
    ):
        package = probe.package
        found = probe.Package("cupy", CUPY, cupy) if cupy else probe.Package("cupy", problem="none")
        monkeypatch.setattr(
            probe, "package", lambda name: found if name == "cupy" else package(name)
        )
        for name, library in (("cudnn", cudnn), ("nvrtc", nvrtc), ("miopen", miopen)):
            monkeypatch.setattr(probe, f"{name}_library", lambda library=library: library)
        monkeypatch.setattr(probe, "devices", lambda cupy: devices)
        monkeypatch.setattr(probe, "adapters", lambda: more.get("adapters", []))
        monkeypatch.setattr(probe, "own_kernels_problem", lambda: "")
        monkeypatch.setattr(wheels, "version", lambda name: dict(wheels_).get(name, ""))
        monkeypatch.setattr(wheels, "_requirements", lambda name: more.get("requires", ()))
        driver = more.get("driver")
        monkeypatch.setattr(probe, "_cuda_of_driver", lambda: driver)

    describe()
    return describe


def lines(capsys, *options: str) -> list[str]:
    assert main(["info", *options]) == 0
    return capsys.readouterr().out.splitlines()


def first_line(capsys) -> str:
    return lines(capsys)[0]


def additions(capsys) -> dict[str, str]:
    found = lines(capsys)
    rows = found[found.index("To use more of dnnffi") + 1 :]
    return dict(row.strip().split(": ", 1) for row in rows)


def test_the_first_line_of_a_bare_machine_names_the_reference_and_the_install_command(
    capsys, machine
):
    assert first_line(capsys) == (
        "Ready: NumPy reference. Not found: cuDNN (install: pip install nvidia-cudnn-cu13 "
        "(CUDA 12: nvidia-cudnn-cu12)), an NVIDIA or AMD GPU."
    )


def test_the_first_line_with_a_library_alone_misses_the_gpu(capsys, machine):
    machine(cudnn=CUDNN)
    assert first_line(capsys) == "Ready: NumPy reference. Not found: an NVIDIA or AMD GPU."


def test_the_first_line_of_a_gpu_with_cudnn_misses_nothing(capsys, machine):
    machine(cudnn=CUDNN, devices=probe.Devices((H200,)))
    assert first_line(capsys) == "Ready: cuDNN 9.19.0 on NVIDIA H200, NumPy reference."


def test_the_first_line_of_a_gpu_without_cudnn_names_the_wheel_for_the_installed_cupy(
    capsys, machine
):
    machine(cupy="14.1", devices=probe.Devices((H200,)), wheels_={"cupy-cuda12x": "14.1"})
    assert first_line(capsys) == (
        "Ready: NumPy reference. Not found: cuDNN (install: pip install nvidia-cudnn-cu12)."
    )


def test_the_first_line_of_an_amd_gpu_is_about_miopen(capsys, machine):
    devices = probe.Devices((probe.Device(0, "gfx1100", "11.0", 2**34),), kind="rocm")
    machine(cupy="14.1", devices=devices, miopen=MIOPEN)
    assert first_line(capsys) == "Ready: MIOpen 3.4.0 on gfx1100, NumPy reference."
    machine(cupy="14.1", devices=devices)
    assert first_line(capsys) == (
        f"Ready: NumPy reference. Not found: MIOpen (install: {probe.INSTALL_MIOPEN})."
    )


def test_without_cupy_the_library_of_miopen_stands_for_an_amd_gpu(capsys, machine):
    machine(miopen=MIOPEN)
    assert first_line(capsys) == "Ready: MIOpen 3.4.0, NumPy reference."


def test_the_first_line_names_adapters_and_frameworks(capsys, machine):
    adapters = [probe.Adapters("Vulkan", ("Some GPU (Vulkan)",))]
    machine(cudnn=CUDNN, adapters=adapters, wheels_={"torch": "2.13.0+cpu", "jax": "0.10.2"})
    ready = first_line(capsys).partition(".")[0]
    assert ready == "Ready: Vulkan on Some GPU (Vulkan), NumPy reference, dnnffi"
    assert "NumPy reference, dnnffi.torch, dnnffi.jax. Not found" in first_line(capsys)


@pytest.mark.parametrize(
    ("wheel", "requires", "shown"),
    [
        ({}, (), "not installed"),
        ({"torch": "2.13.0+cpu"}, (), "2.13.0+cpu, for the CPU"),
        ({"torch": "2.13.0+cu130"}, (), "2.13.0+cu130, for CUDA 13"),
        ({"torch": "2.13.0+rocm7.1"}, (), "2.13.0+rocm7.1, for ROCm"),
        ({"torch": "2.13.0"}, ("nvidia-cudnn-cu13==9.1; x",), "2.13.0, for CUDA 13"),
        ({"torch": "2.13.0"}, ("sympy",), "2.13.0, for the CPU"),
    ],
)
def test_pytorch_is_shown_with_what_it_is_built_for(wheel, requires, shown, capsys, machine):
    machine(wheels_=wheel, requires=requires)
    assert f"  PyTorch  {shown}" in lines(capsys)


@pytest.mark.parametrize(
    ("wheel", "shown"),
    [
        ({}, "not installed"),
        ({"jax": "0.10.2"}, "0.10.2, for the CPU"),
        ({"jax": "0.10.2", "jax-cuda12-plugin": "0.10.2"}, "0.10.2, for CUDA 12"),
    ],
)
def test_jax_is_shown_with_its_plugin(wheel, shown, capsys, machine):
    machine(wheels_=wheel)
    assert f"  JAX      {shown}" in lines(capsys)


@pytest.mark.parametrize(
    ("wheel", "driver", "cudnn"),
    [
        ({"cupy-cuda12x": "14.1", "jax-cuda13-plugin": "0.10.2"}, 13, "nvidia-cudnn-cu12"),
        ({"cupy-cuda13x": "14.1"}, 13, "nvidia-cudnn-cu13"),
        ({"torch": "2.13.0+cu126"}, 13, "nvidia-cudnn-cu12"),
        ({"jax-cuda12-plugin": "0.10.2"}, 13, "nvidia-cudnn-cu12"),
        ({}, 12, "nvidia-cudnn-cu12"),
        ({}, 13, "nvidia-cudnn-cu13"),
        ({}, 14, "nvidia-cudnn-cu13"),
        ({}, 11, "nvidia-cudnn-cu13 (CUDA 12: nvidia-cudnn-cu12)"),
    ],
)
def test_the_wheel_of_cudnn_is_for_the_cuda_of_the_installed_packages(
    wheel, driver, cudnn, capsys, machine
):
    machine(cupy="14.1", wheels_=wheel, driver=driver)
    assert additions(capsys)["cuDNN, for RNNs and convolutions on NVIDIA GPUs"] == (
        f"pip install {cudnn}"
    )


def test_cupy_and_cudnn_together_are_an_extra(capsys, machine):
    machine(devices=probe.Devices((H200,)), driver=12)
    found = additions(capsys)
    command = install_extra("cuda12")
    assert found["CuPy, for arrays on a GPU (not with an allocator)"] == command
    assert f"Not found: cuDNN (install: {command})." in first_line(capsys)


def test_jax_without_its_plugin_is_an_addition_where_there_is_a_gpu(capsys, machine):
    plugin = "JAX's CUDA plugin, for dnnffi.jax on the GPU"
    machine(wheels_={"jax": "0.10.2"}, driver=13)
    assert plugin not in additions(capsys)
    machine(wheels_={"jax": "0.10.2"}, driver=13, devices=probe.Devices((H200,)))
    assert additions(capsys)[plugin] == "pip install 'jax[cuda13]'"
    both = {"jax": "0.10.2", "jax-cuda13-plugin": "0.10.2"}
    machine(wheels_=both, driver=13, devices=probe.Devices((H200,)))
    assert plugin not in additions(capsys)


def test_an_nvidia_gpu_needs_no_miopen(capsys, machine):
    machine(devices=probe.Devices((H200,)))
    assert not [name for name in additions(capsys) if name.startswith("MIOpen")]


def test_without_a_gpu_no_search_is_shown(capsys, machine):
    assert not [line for line in lines(capsys) if "searched" in line]


@pytest.mark.parametrize(
    "found",
    [
        {"cudnn": MISSING, "devices": probe.Devices((H200,))},
        {"cudnn": probe.Library(problem="not found", searched=MISSING.searched, is_named=True)},
    ],
    ids=["with a GPU", "named by the environment"],
)
def test_a_search_that_should_have_succeeded_is_shown(found, capsys, machine):
    machine(**found)
    shown = lines(capsys)
    assert shown[shown.index("cuDNN: not found") + 1] == "  searched ROCM_PATH: not set"


def test_verbose_shows_every_search(capsys, machine):
    shown = lines(capsys, "--verbose")
    assert [line for line in shown if "searched" in line] == ["  searched ROCM_PATH: not set"] * 3


def test_a_library_that_the_environment_names_and_that_is_missing_is_shown(tmp_path):
    missing = str(tmp_path / "libcudnn.so.9")
    done = subprocess.run(
        [sys.executable, "-m", "dnnffi", "info"],
        env={**os.environ, "DNNFFI_CUDNN_LIBRARY": missing},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    # Drivers of Vulkan may write there, too.
    assert not re.search("Traceback|BrokenPipeError|Exception ignored", done.stderr)
    assert "cuDNN: not found" in done.stdout
    assert missing in done.stdout
    assert "pip install nvidia-cudnn-cu13" in done.stdout


def test_a_library_is_shown_with_its_path_and_how_it_was_found(capsys, machine):
    machine(cudnn=CUDNN, miopen=MIOPEN)
    shown = lines(capsys)
    start = shown.index("cuDNN 9.19.0, for RNNs and convolutions on NVIDIA GPUs")
    assert shown[start + 1 : start + 3] == [
        "  path       /somewhere/libcudnn.so.9",
        "  found via  cuda-pathfinder",
    ]
    assert "MIOpen 3.4.0, for RNNs and convolutions on AMD GPUs" in shown


def test_gpus_are_shown_with_capability_and_memory(capsys, machine):
    machine(devices=probe.Devices((H200,)))
    shown = lines(capsys)
    at = shown.index("GPUs")
    assert shown[at + 1] == "  0  NVIDIA H200, compute capability 9.0, 140.0 GiB"
    assert shown[at + 3] == "dnnffi's own recurrent kernels run on the current device"


def test_the_own_kernels_are_not_mentioned_for_an_amd_gpu(capsys, machine):
    device = probe.Device(0, "gfx1100", "", 2**34)
    machine(cupy="14.1", devices=probe.Devices((device,), kind="rocm"), miopen=MIOPEN)
    shown = lines(capsys)
    assert "  0  gfx1100, 16.0 GiB" in shown
    assert not [line for line in shown if "own recurrent kernels" in line]


def test_adapters_are_numbered(capsys, machine):
    machine(adapters=[probe.Adapters("Vulkan", ("Some GPU", "lavapipe"))])
    shown = lines(capsys)
    start = shown.index("Vulkan, for RNN inference on any GPU")
    assert shown[start + 1 : start + 3] == ["  0  Some GPU", "  1  lavapipe"]


def test_without_wgpu_the_install_command_is_shown(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wgpu", None)
    shown = lines(capsys)
    assert "Vulkan: not found" in shown
    assert f"  Vulkan, for RNN inference on any GPU: {install_extra('vulkan')}" in shown


def test_a_broken_package_is_shown(monkeypatch, capsys):
    broken = probe.Package("cupy", problem="libcublas.so: cannot open")
    package = probe.package
    monkeypatch.setattr(probe, "package", lambda name: broken if name == "cupy" else package(name))
    assert "  CuPy     libcublas.so: cannot open" in lines(capsys)


def test_a_reader_that_has_ended_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dnnffi", "info"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    # Drivers of Vulkan may write there, too.
    assert not re.search("Traceback|BrokenPipeError|Exception ignored", done.stderr)
    assert done.returncode == 141


def test_a_hint_for_both_versions_is_reduced_to_one():
    hint = "pip install 'a-cuda13x[ctk]' (CUDA 12: 'a-cuda12x[ctk]'; ROCm 7: a-rocm)"
    assert wheels.fitting(hint, 12) == "pip install 'a-cuda12x[ctk]'"
    assert wheels.fitting(hint, 13) == "pip install 'a-cuda13x[ctk]'"
    assert wheels.fitting(hint, None) == hint
    assert wheels.fitting("the package of the system", 12) == "the package of the system"


def test_the_versions_of_this_environment_are_read_from_metadata():
    assert wheels.version("numpy")
    assert wheels.version("dnnffi-absent") == ""


def test_the_report_is_made_of_lines():
    assert all("\n" not in line for line in info.report(is_verbose=True))
