"""The commands on a machine with a GPU: a module takes the place of CuPy."""

from __future__ import annotations

import os
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dnnffi.backends.cudnn import library as cudnn
from dnnffi.backends.registry import BACKENDS
from dnnffi.cli import bench, demo, info, main, probe
from dnnffi.cli.machine import machine
from dnnffi.errors import CudaError, DnnffiError, LibraryNotFoundError, UnsupportedError
from dnnffi.runtime.nvrtc import compiler as nvrtc

NAMES = (b"NVIDIA H100", b"NVIDIA H200")
NO_DRIVER = LibraryNotFoundError("CUDA's driver", ["here"], "a GPU")


@pytest.fixture
def cupy(monkeypatch):
    """A CuPy that sees two devices, of which the second is the current one."""
    found = [
        {"name": name, "major": 9, "minor": at, "totalGlobalMem": (80 + at) * 2**30}
        for at, name in enumerate(NAMES)
    ]
    module = ModuleType("cupy")
    module.__version__ = "14.1"
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            is_hip=False,
            getDevice=lambda: 1,
            getDeviceCount=lambda: len(found),
            getDeviceProperties=found.__getitem__,
            driverGetVersion=lambda: 13000,
        )
    )
    module.found = found
    monkeypatch.setitem(sys.modules, "cupy", module)
    library = probe.Library("9.19.0", "/somewhere/libcudnn.so.9", "cuda-pathfinder")
    monkeypatch.setattr(probe, "cudnn_library", lambda: library)
    return module


def raise_error(error):
    raise error


@pytest.mark.parametrize(("version", "shown"), [("1.5", "1.5"), (None, "unknown version")])
def test_a_module_without_a_version_has_that_of_its_distribution(
    version, shown, tmp_path, monkeypatch
):
    (tmp_path / "dnnffi_plain.py").write_text("")
    if version is not None:
        folder = tmp_path / f"dnnffi_plain-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: dnnffi_plain\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = probe.package("dnnffi_plain")
    assert (found.version, found.problem) == (shown, "")
    assert found.module.__name__ == "dnnffi_plain"


def test_a_folder_of_the_name_of_a_package_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "dnnffi_clone").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.package("dnnffi_clone") == probe.Package("dnnffi_clone", problem="not installed")


def test_a_folder_of_the_name_of_an_absent_package_leaves_it_absent(tmp_path, monkeypatch):
    (tmp_path / "dnnffi_clone").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert probe.absent("dnnffi_clone") == ["dnnffi_clone"]


@pytest.mark.parametrize("missing", ["dnnffi_absent", "dnnffi_importer"])
def test_a_package_that_is_missing_differs_from_one_that_misses_another(
    missing, tmp_path, monkeypatch
):
    (tmp_path / "dnnffi_importer.py").write_text("import dnnffi_absent")
    monkeypatch.syspath_prepend(tmp_path)
    problem = "not installed" if missing == "dnnffi_absent" else "needs dnnffi_absent"
    assert probe.package(missing).problem == problem
    assert probe.absent("dnnffi_absent", "dnnffi_importer") == ["dnnffi_absent"]


def test_devices_have_a_name_a_capability_and_a_memory(cupy):
    seen = probe.devices(probe.package("cupy"))
    assert seen.problem == ""
    assert [(one.index, one.name, one.capability) for one in seen.found] == [
        (0, "NVIDIA H100", "9.0"),
        (1, "NVIDIA H200", "9.1"),
    ]
    assert [one.memory for one in seen.found] == [80 * 2**30, 81 * 2**30]


def test_a_driver_without_devices_is_a_problem(cupy):
    cupy.found.clear()
    assert probe.devices(probe.package("cupy")).problem == "the driver reports no device"
    assert probe.cudnn_problem() == "GPU: the driver reports no device"


def test_a_driver_that_fails_is_a_problem(cupy, monkeypatch):
    monkeypatch.setattr(probe, "load_driver", lambda: Driver(["NVIDIA H100"]))
    cupy.cuda.runtime.getDeviceCount = lambda: raise_error(RuntimeError("no\ndriver"))
    assert probe.devices(probe.package("cupy")).problem == "no driver"
    assert probe.cudnn_problem() == "GPU: no driver"


def test_an_error_of_cupy_without_a_driver_says_that_the_driver_is_missing(cupy, monkeypatch):
    monkeypatch.setattr(probe, "load_driver", lambda: raise_error(NO_DRIVER))
    too_old = RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
    cupy.cuda.runtime.getDeviceCount = lambda: raise_error(too_old)
    assert probe.devices(probe.package("cupy")).problem == "CUDA's driver was not found"
    cupy.cuda.runtime.is_hip = True
    assert probe.devices(probe.package("cupy")).problem == str(too_old)


def test_devices_of_a_cupy_for_rocm_are_of_that_kind(cupy):
    cupy.cuda.runtime.is_hip = True
    assert probe.devices(probe.package("cupy")).kind == "rocm"


def test_cudnn_can_be_used_on_a_device_with_a_library(cupy, monkeypatch):
    assert probe.cudnn_problem() == ""
    monkeypatch.setattr(probe, "cudnn_library", lambda: probe.Library(problem="not found"))
    assert probe.cudnn_problem() == "cuDNN: not found"


def test_cudnn_cannot_be_used_with_a_cupy_for_rocm(cupy):
    cupy.cuda.runtime.is_hip = True
    assert probe.cudnn_problem() == "this CuPy is for ROCm"


def test_cudnn_cannot_be_used_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert probe.cudnn_problem().startswith("CuPy: ")


class Driver:
    """CUDA's driver with some devices."""

    def __init__(self, names):
        self.names = names

    def device_count(self):
        return len(self.names)

    def device_name(self, device):
        return self.names[device]

    def attributes(self, device):
        return SimpleNamespace(compute_capability=(9, device))

    def total_bytes(self, device):
        return (80 + device) * 2**30


def without_cupy(monkeypatch, load):
    """The devices that are found without CuPy, with a driver or an error in its place."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(probe, "load_driver", load)
    return probe.devices(probe.package("cupy"))


def test_without_cupy_devices_are_those_of_the_driver(monkeypatch):
    seen = without_cupy(monkeypatch, lambda: Driver(["NVIDIA H100", "NVIDIA H200"]))
    assert seen.problem == ""
    assert seen.found[1] == probe.Device(1, "NVIDIA H200", "9.1", 81 * 2**30)


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        (lambda: Driver([]), "the driver reports no device"),
        (lambda: raise_error(NO_DRIVER), "CUDA's driver was not found"),
        (
            lambda: raise_error(CudaError(100, "CUDA_ERROR_NO_DEVICE", "cuInit")),
            "cuInit returned CUDA_ERROR_NO_DEVICE (100)",
        ),
    ],
)
def test_without_cupy_and_a_device_the_driver_says_why(monkeypatch, load, problem):
    assert without_cupy(monkeypatch, load) == probe.Devices(problem=problem)


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        (lambda kind: raise_error(NO_DRIVER), "CUDA's driver was not found"),
        (lambda kind: raise_error(CudaError(100, "NO_DEVICE", "cuInit")), "cuInit returned"),
        (
            lambda kind: SimpleNamespace(kernel_problem=lambda: "need NVRTC, which is\nnot there"),
            "our own kernels need NVRTC, which is not there",
        ),
    ],
)
def test_info_says_why_own_kernels_do_not_run(monkeypatch, memory, problem):
    monkeypatch.setattr("dnnffi.device.external.ExternalMemory", memory)
    assert probe.own_kernels_problem().startswith(problem)


def test_without_nvrtc_info_says_that_own_kernels_need_it(cupy, monkeypatch, capsys):
    missing = LibraryNotFoundError("NVRTC", ["cuda-pathfinder: nothing there"], "pip install it")
    monkeypatch.setattr(nvrtc, "load_compiler", lambda: raise_error(missing))
    problem = "need NVRTC, which was not found. Install: pip install it"
    memory = SimpleNamespace(kernel_problem=lambda: problem)
    monkeypatch.setattr("dnnffi.device.external.ExternalMemory", lambda kind: memory)
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "NVRTC: not found\n  searched cuda-pathfinder: nothing there\n" in out
    assert f"dnnffi's own recurrent kernels do not run: our own kernels {problem}\n" in out
    assert "cuDNN 9.19.0, for RNNs and convolutions on NVIDIA GPUs\n" in out


def test_a_library_that_cannot_be_loaded_is_a_problem(monkeypatch):
    monkeypatch.setattr(cudnn, "load", lambda: raise_error(OSError("too\nold")))
    found = probe.cudnn_library()
    assert (found.problem, found.version, found.searched) == ("too old", "", ())


def test_a_backend_whose_driver_fails_has_no_adapters(monkeypatch):
    record = SimpleNamespace(title="Odd", adapters=lambda: raise_error(RuntimeError("no\nadapter")))
    monkeypatch.setitem(BACKENDS, "odd", record)
    assert probe.adapters()[-1] == probe.Adapters("Odd", (), "no adapter")


@pytest.mark.parametrize("before", [None, "/run/user/1"])
def test_drivers_find_a_runtime_folder_while_adapters_are_listed(before, monkeypatch):
    def look():
        seen.append(os.environ["XDG_RUNTIME_DIR"])
        return ["an adapter"]

    seen = []
    monkeypatch.setattr(probe, "BACKENDS", {"odd": SimpleNamespace(title="Odd", adapters=look)})
    if before is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", before)
    assert probe.adapters() == [probe.Adapters("Odd", ("an adapter",))]
    assert seen[0] == before or (before is None and not Path(seen[0]).exists())
    assert os.environ.get("XDG_RUNTIME_DIR") == before


@pytest.mark.parametrize(
    ("problem", "shown"),
    [("", "run on the current device"), ("too old a GPU", "do not run: too old a GPU")],
)
def test_info_shows_the_devices_and_whether_own_kernels_run(
    problem, shown, cupy, monkeypatch, capsys
):
    monkeypatch.setattr(probe, "own_kernels_problem", lambda: problem)
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "GPUs\n  0  NVIDIA H100, compute capability 9.0, 80.0 GiB\n" in out
    assert f"dnnffi's own recurrent kernels {shown}\n" in out
    assert "GPU, for the backends" not in out


@pytest.mark.parametrize("absent", [[], ["rich", "matplotlib"]])
def test_info_names_the_command_for_what_demo_and_bench_need(absent, monkeypatch, capsys):
    monkeypatch.setattr(probe, "absent", lambda *names: absent)
    assert main(["info"]) == 0
    text = f"  rich, matplotlib, for demo and bench: {probe.INSTALL_DEMO}\n"
    assert (text in capsys.readouterr().out) is bool(absent)


@pytest.mark.parametrize("asked", [None, "cudnn"])
def test_the_demo_uses_the_current_device(asked, cupy, capsys):
    assert demo.choose_backend(asked) == ("cudnn", cupy)
    assert capsys.readouterr().out == "Backend   cuDNN 9.19.0 on NVIDIA H200\n"


def test_the_demo_runs_on_the_cpu_if_asked_to(cupy, capsys):
    assert demo.choose_backend("reference")[0] == "reference"
    assert "cannot use a GPU" not in capsys.readouterr().out


@pytest.mark.parametrize(("asked", "place"), [(None, "gpu"), ("gpu", "gpu"), ("cpu", "cpu")])
def test_the_benchmark_runs_on_a_gpu_unless_the_cpu_is_asked_for(asked, place, cupy, capsys):
    assert bench._place(asked) == place
    assert capsys.readouterr().out == ""


def test_the_benchmark_says_why_it_runs_on_the_cpu(cupy, capsys):
    cupy.found.clear()
    assert bench._place(None) == "cpu"
    assert capsys.readouterr().out == (
        "Measuring on the CPU; dnnffi cannot use a GPU here (GPU: the driver reports no device)\n"
    )


def test_a_record_of_a_gpu_names_device_driver_and_libraries(cupy, monkeypatch):
    torch = ModuleType("torch")
    torch.__version__ = "2.13"
    torch.backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900))
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = machine("gpu", ("torch",))
    assert found["device"] == "NVIDIA H200"
    assert (found["cudnn"], found["cupy"]) == ("9.19.0", "14.1")
    assert found["cuda_driver_api"] == 13000
    assert (found["torch"], found["torch_cudnn"]) == ("2.13", "91900")
    assert "driver" in found
    assert "torch_cudnn" not in machine("gpu", ())
    assert "torch_cudnn" not in machine("cpu", ("torch",))


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError(), 1, "dnnffi info: error: out of memory\n"),
        (OSError("disk full"), 1, "dnnffi info: error: disk full\n"),
        (UnsupportedError("cuDNN", "", "x"), 1, None),
        (DnnffiError("odd"), 1, "dnnffi info: error: odd\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_command_that_fails_ends_with_one_line_and_a_code(error, code, text, monkeypatch, capsys):
    monkeypatch.setattr(info, "report", lambda **keywords: raise_error(error))
    assert main(["info"]) == code
    said = capsys.readouterr().err
    assert text is None or said == text
    assert said.count("\n") == (code == 1)


def test_an_error_of_a_program_is_not_hidden(monkeypatch):
    monkeypatch.setattr(info, "report", lambda **keywords: raise_error(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_the_demo_generates_text_alone(capsys):
    assert main(["demo", "--generate", "--conv"]) == 2
    assert "--generate cannot be combined with --conv: it writes text" in capsys.readouterr().err


def test_the_demo_names_a_folder_without_text(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.sysconfig, "get_path", lambda name: str(tmp_path))
    assert main(["demo", "--backend", "reference", "--output", str(tmp_path / "output")]) == 1
    assert f"no Python source in {tmp_path}; pass a text with --text" in capsys.readouterr().err


def test_the_demo_reads_modules_in_order_and_no_tests(tmp_path, monkeypatch):
    for name, text in {"b.py": "B", "a.py": "AA", "test/c.py": "C", "p/d.py": "D"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(demo.sysconfig, "get_path", lambda name: str(tmp_path))
    assert demo.read_text(None, 10) == ("AABD", "Python's standard library (3 files)")
    assert demo.read_text(None, 3) == ("AAB", "Python's standard library (2 files)")
    assert demo.read_text(None, 1) == ("A", "Python's standard library (1 files)")


def test_the_demo_refuses_a_network_that_is_too_large(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("abcdef" * 100)
    arguments = ["--backend", "reference", "--text", str(text), "--output", str(tmp_path)]
    assert main(["demo", *arguments, "--hidden", "3000000000"]) == 2
    assert "hidden_size" in capsys.readouterr().err


def test_the_texts_of_a_table_begin_in_one_column(cupy, monkeypatch, capsys):
    library = probe.Library("9.19.0", "/somewhere", "cuda-pathfinder")
    monkeypatch.setattr(probe, "cudnn_library", lambda: library)
    assert main(["info"]) == 0
    assert "\n  path       /somewhere\n  found via  cuda-pathfinder\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "made",
    [
        probe.Package("a"),
        probe.Library(),
        probe.Device(0, "a", "9.0", 1),
        probe.Devices(),
        probe.Adapters("a"),
        demo.SIZES["reference"],
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_was_found_does_not_change(made):
    assert {made} == {replace(made)}
    for field in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, None)
