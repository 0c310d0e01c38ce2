"""PyTorch's files of weights: what is read, and that no code in them is run."""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from dnnffi import RNNSpec, RNNWeights, testing

SPEC = RNNSpec(mode="gru", input_size=3, hidden_size=4, num_layers=2, bidirectional=True)


def arrays():
    return RNNWeights.pack(testing.weights(SPEC, 0), SPEC).to_torch()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.pt"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def state(torch, dtype="float32"):
    return OrderedDict(
        (name, torch.from_numpy(one).to(getattr(torch, dtype))) for name, one in arrays().items()
    )


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_is_read(tmp_path, torch, suffix, is_zip):
    path = tmp_path / f"net{suffix}"
    torch.save(state(torch), path, _use_new_zipfile_serialization=is_zip)
    found = RNNWeights.load(path)
    assert found.spec == SPEC
    np.testing.assert_array_equal(found.flat, RNNWeights.from_torch(arrays()).flat)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_read(path, torch, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    torch.save(state(torch, dtype), path)
    found = RNNWeights.load(path)
    assert found.spec.dtype == dtype
    expected = state(torch, dtype)["weight_hh_l1"].to(torch.float64).numpy()
    np.testing.assert_array_equal(found.to_torch()["weight_hh_l1"].astype("float64"), expected)


def test_the_tensors_of_a_checkpoint_are_found(path, torch):
    module = torch.nn.ModuleDict({"rnn": torch.nn.GRU(3, 4), "head": torch.nn.Linear(4, 2)})
    optimizer = torch.optim.Adam(module.parameters())
    module["head"](module["rnn"](torch.ones(2, 1, 3))[0]).sum().backward()
    optimizer.step()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)
    assert RNNWeights.load(path, prefix="model.rnn.").spec.hidden_size == 4
    assert RNNWeights.load(path).spec.hidden_size == 4


def test_tensors_in_lists_have_numbers_for_names(path, torch):
    torch.save([{"a": 1}, {"net": state(torch)}], path)
    assert RNNWeights.load(path, prefix="1.net.").spec == SPEC


def test_two_tensors_of_one_name_are_refused(path, torch):
    torch.save({"net.weight": torch.ones(1), "net": {"weight": torch.ones(1)}}, path)
    with pytest.raises(ValueError, match=r"it has two tensors of the name net\.weight$"):
        RNNWeights.load(path)


def test_containers_in_themselves_are_entered_once(path, torch):
    content = {"state": state(torch), "again": {}}
    content["again"]["self"] = content
    wide = [0]
    for _ in range(30):
        wide = [wide, wide]
    torch.save(content | {"wide": wide}, path)
    assert RNNWeights.load(path, prefix="state.").spec == SPEC


def test_views_and_parameters_are_read(path, torch):
    whole = torch.randn(3, 24)
    torch.save(
        {
            "weight_ih": torch.nn.Parameter(whole.T[:12]),
            "weight_hh": torch.zeros(12, 4),
            "net.steps": torch.ones(3, dtype=torch.int64),
        },
        path,
    )
    found = RNNWeights.load(path).to_torch()["weight_ih_l0"]
    np.testing.assert_array_equal(found, whole.T[:12].numpy())


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_no_code_is_run(tmp_path, torch, is_zip):
    path = tmp_path / "net.pt"
    content = {"state": state(torch), "other": Harmful(tmp_path / "made")}
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(
        ValueError, match=rf"^{path} is .*: it has objects other than tensors .*sav"
    ):
        RNNWeights.load(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("text", ["import torch", "", "\n"])
def test_another_file_of_that_name_is_refused(path, torch, text):
    path.write_text(text, encoding="utf-8")
    message = rf"^{path} is not a readable pt file of plain arrays: torch\.save has not written it$"
    with pytest.raises(ValueError, match=message):
        RNNWeights.load(path)


def test_a_bare_pickle_is_refused(tmp_path, torch):
    path = tmp_path / "net.pt"
    path.write_bytes(pickle.dumps(Harmful(tmp_path / "made")))
    with pytest.raises(ValueError, match=rf"^{path} is not a readable pt file of plain arrays"):
        RNNWeights.load(path)
    assert not (tmp_path / "made").exists()


def test_a_whole_module_is_refused_with_what_to_save(path, torch):
    torch.save(torch.nn.GRU(3, 4), path)
    with pytest.raises(ValueError, match=r"save module\.state_dict\(\) with PyTorch$") as caught:
        RNNWeights.load(path)
    assert "weights_only" not in str(caught.value)


def test_torchscript_is_refused_with_the_way_to_read_it(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/constants.pkl", b"")
    message = r"it is a TorchScript archive, .* torch\.jit\.load\(path\)\.state_dict\(\) to RNNW"
    with pytest.raises(ValueError, match=message):
        RNNWeights.load(path)


def test_an_archive_that_torch_scripted_is_recognised(path, torch):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), path)
    with pytest.raises(ValueError, match="it is a TorchScript archive"):
        RNNWeights.load(path)


def test_compressed_archives_are_refused(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data/0", bytes(2**20))
    with pytest.raises(ValueError, match=rf"^{path} is .*: net/data/0 is compressed, and nothing"):
        RNNWeights.load(path)


def test_a_tensor_of_repeated_elements_is_refused(path, torch):
    repeated = torch.zeros(1).expand(2**20, 2**18)
    torch.save({"weight_ih_l0": repeated, "weight_hh_l0": repeated}, path)
    with pytest.raises(ValueError, match="weight_ih_l0 claims more bytes than are stored for it"):
        RNNWeights.load(path)


def test_another_tensor_of_repeated_elements_does_not_matter(path, torch):
    torch.save(state(torch) | {"head.mask": torch.zeros(1).expand(2**10, 2**10)}, path)
    assert RNNWeights.load(path).spec == SPEC


def test_tensors_that_share_memory_are_refused_if_they_are_too_many(path, torch):
    shared = torch.zeros(256, 256)
    kinds = ("ih", "hh")
    torch.save({f"weight_{kind}_l{at}": shared for at in range(20) for kind in kinds}, path)
    with pytest.raises(ValueError, match="its tensors claim more bytes than the"):
        RNNWeights.load(path, "rnn_tanh")


@pytest.mark.parametrize("is_zip", [True, False])
def test_truncated_files_are_refused_by_name(path, torch, is_zip):
    torch.save(state(torch), path, _use_new_zipfile_serialization=is_zip)
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 997), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"^{path} is not a readable pt file"):
            RNNWeights.load(path)


def test_without_pytorch_the_message_says_what_to_do(path, monkeypatch):
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"\.pth needs PyTorch\. Install: pip install torch\. Or save .*\.save\('rnn\.npz'\)$"
    with pytest.raises(ImportError, match=message):
        RNNWeights.load(path)


class OldTorch:
    __version__ = "2.5.1+cu124"


def test_a_pytorch_that_runs_code_in_files_is_refused(path, monkeypatch):
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", OldTorch)
    with pytest.raises(
        ImportError, match=r"needs PyTorch 2\.6: earlier ones, as 2\.5\.1\+cu124, run"
    ):
        RNNWeights.load(path)
