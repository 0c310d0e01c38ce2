"""Tests that the page for programs that used CuPy 13 names every function of its cuDNN modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "from_cupy.md").read_text(encoding="utf-8")

# The public functions and classes of cupyx/cudnn.pyx, CuPy 13.6.0.
CUPYX = """
get_handle reset_handles get_max_workspace_size set_max_workspace_size Descriptor get_data_type
create_tensor_descriptor create_uninitialized_tensor_descriptor create_tensor_nd_descriptor
create_filter_descriptor create_convolution_descriptor create_pooling_descriptor
rnn_forward_inference_ex rnn_forward_training_ex rnn_backward_data_ex rnn_backward_weights_ex
create_activation_descriptor activation_forward activation_backward softmax_forward softmax_backward
create_dropout_descriptor set_dropout_descriptor ctc_loss create_rnn_descriptor
get_rnn_lin_layer_matrix_params get_rnn_lin_layer_bias_params rnn_forward_inference
rnn_forward_training rnn_backward_data rnn_backward_weights create_dropout_states
create_spatial_transformer_descriptor add_tensor create_op_tensor_descriptor
create_reduce_tensor_descriptor is_tensor_core_available DropoutStates convolution_forward
convolution_backward_filter convolution_backward_data pooling_forward pooling_backward
batch_normalization_forward_training batch_normalization_forward_training_ex
batch_normalization_forward_inference batch_normalization_backward create_fused_ops_plan
create_fused_ops_const_param_pack make_fused_ops_plan create_fused_ops_variant_param_pack
fused_ops_execute set_fused_ops_const_param_pack_attribute get_fused_ops_const_param_pack_attribute
set_fused_ops_variant_param_pack_attribute get_fused_ops_variant_param_pack_attribute cudnn_version
"""

# The public names of cupy_backends/cuda/libs/cudnn.pyx, which cupy.cuda.cudnn shows, without
# suffixes of versions.
CUPY_CUDA = """
CuDNNError check_status get_build_version getVersion queryRuntimeError create destroy setStream
getStream createTensorDescriptor setTensor4dDescriptor setTensor4dDescriptorEx getTensor4dDescriptor
setTensorNdDescriptor destroyTensorDescriptor addTensor createOpTensorDescriptor
setOpTensorDescriptor getOpTensorDescriptor destroyOpTensorDescriptor opTensor
createReduceTensorDescriptor setReduceTensorDescriptor getReduceTensorDescriptor
destroyReduceTensorDescriptor getReductionIndicesSize getReductionWorkspaceSize reduceTensor
setTensor scaleTensor createFilterDescriptor setFilter4dDescriptor setFilterNdDescriptor
getFilterNdDescriptor destroyFilterDescriptor createConvolutionDescriptor setConvolutionMathType
getConvolutionMathType setConvolutionGroupCount getConvolutionGroupCount
setConvolution2dDescriptor setConvolutionNdDescriptor destroyConvolutionDescriptor
findConvolutionForwardAlgorithm getConvolutionForwardAlgorithm getConvolutionForwardWorkspaceSize
convolutionForward convolutionBackwardBias findConvolutionBackwardFilterAlgorithm
getConvolutionBackwardFilterAlgorithm getConvolutionBackwardFilterWorkspaceSize
convolutionBackwardFilter findConvolutionBackwardDataAlgorithm getConvolutionBackwardDataAlgorithm
getConvolutionBackwardDataWorkspaceSize convolutionBackwardData createPoolingDescriptor
setPooling2dDescriptor setPoolingNdDescriptor destroyPoolingDescriptor poolingForward
poolingBackward deriveBNTensorDescriptor batchNormalizationForwardTraining
batchNormalizationForwardInference batchNormalizationBackward
getBatchNormalizationForwardTrainingExWorkspaceSize getBatchNormalizationBackwardExWorkspaceSize
getBatchNormalizationTrainingExReserveSpaceSize createActivationDescriptor setActivationDescriptor
destroyActivationDescriptor softmaxForward softmaxBackward activationForward activationBackward
createDropoutDescriptor destroyDropoutDescriptor dropoutGetStatesSize setDropoutDescriptor
getDropoutReserveSpaceSize dropoutForward dropoutBackward createCTCLossDescriptor
destroyCTCLossDescriptor setCTCLossDescriptor getCTCLossDescriptor getCTCLossWorkspaceSize CTCLoss
createRNNDescriptor destroyRNNDescriptor createPersistentRNNPlan setPersistentRNNPlan
destroyPersistentRNNPlan setRNNDescriptor setRNNPaddingMode getRNNPaddingMode
createRNNDataDescriptor destroyRNNDataDescriptor setRNNDataDescriptor getRNNDataDescriptor
getRNNWorkspaceSize getRNNTrainingReserveSize getRNNParamsSize getRNNLinLayerMatrixParams
getRNNLinLayerBiasParams RNNForwardInference RNNForwardTraining RNNBackwardData RNNBackwardWeights
createSpatialTransformerDescriptor destroySpatialTransformerDescriptor
setSpatialTransformerDescriptor spatialTfGridGeneratorForward spatialTfGridGeneratorBackward
spatialTfSamplerForward spatialTfSamplerBackward createFusedOpsConstParamPack
destroyFusedOpsConstParamPack setFusedOpsConstParamPackAttribute getFusedOpsConstParamPackAttribute
createFusedOpsVariantParamPack destroyFusedOpsVariantParamPack
setFusedOpsVariantParamPackAttribute getFusedOpsVariantParamPackAttribute createFusedOpsPlan
destroyFusedOpsPlan makeFusedOpsPlan fusedOpsExecute
"""


@pytest.mark.parametrize("name", CUPYX.split())
def test_a_function_of_cupyx_cudnn_is_named(name):
    assert re.search(rf"`{name}[`(]", TEXT), name


def families():
    """Return the names in backquotes on the page, with names that stand for a family expanded."""
    said = set(re.findall(r"`(?:cuda\.cudnn\.)?(\w+)`", TEXT))
    algorithms = re.findall(r"`(\w+)\.\.\.(\w+)`", TEXT)
    directions = ("Forward", "BackwardData", "BackwardFilter")
    said |= {f"{begin}{one}{end}" for begin, end in algorithms for one in directions}
    kinds = {name for name in said if name.endswith(("Descriptor", "Mode", "Type", "Count"))}
    verbs = ("create", "set", "get", "destroy")
    return said | {f"{verb}{kind}" for verb in verbs for kind in kinds}


@pytest.mark.parametrize("name", CUPY_CUDA.split())
def test_a_function_of_cupy_cuda_cudnn_is_named(name):
    plain = re.sub(r"(?<=[a-z])(4d|2d|Nd)(?=Descriptor)", "", name).removesuffix("Ex")
    begins = ("batchNormalization", "spatialTf", "getReduction")
    within = ("BatchNormalization", "CTCLoss", "FusedOps", "fusedOps")
    rows = TEXT.rpartition("| `create_activation_descriptor`")[2]
    if plain.startswith(begins) or any(part in plain for part in within):
        found = [part for part in (*begins, *within) if part.lower() in plain.lower()]
        assert any(f"`{part}`" in rows for part in found), name
    else:
        assert plain in families(), name
