"""torch's own eager-mode tests, one by one, and which test here checks the same behaviour.

The names are those of `test/quantization/eager` and `test/quantization/core/test_quantized_module.py` in torch 2.13.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AS_TORCH = "tests/torch/workflow/test_as_torch.py"
STEPS = "tests/parity/test_workflow_steps.py"
LAYER = "tests/torch/workflow/test_layers.py::test_a_layer_between_stubs"
DYNAMIC = "tests/torch/nn/quantized/test_dynamic.py::test_beside_torch"
ENTRIES = "tests/torch/workflow/test_dynamic.py::test_entries_say_what_is_quantized"
NESTED = "tests/torch/workflow/test_left_out.py::test_nested_settings_and_layers_that_are_left_out"
ROWS = "tests/torch/workflow/test_fuse.py::test_rows_with_a_relu"
SEVERAL = "tests/torch/workflow/test_fuse.py::test_several_rows_nested_names_and_what_stays"
LOADS = "tests/torch/workflow/test_models.py::test_state_dicts_go_into_models_at_the_same_step"
OBSERVED = "tests/torch/workflow/test_prepare.py::test_users_hooks_see_what_observers_return"
ENDS = "tests/torch/workflow/test_fuse.py::test_hooks_of_the_ends_go_along_and_run_once"
TRAINED = "tests/torch/workflow/test_convert.py::test_a_trained_state_dict_goes_into_models_that_saw_nothing"
HOOKS = "tests/torch/workflow/test_convert.py::test_hooks_mode_and_own_classes_go_over"
FORMS = "tests/torch/nn/quantized/test_layers.py"
TRANSPOSED = "tests/torch/nn/quantized/test_conv_transpose.py::test_converted"

COVERED = {
    "test_quantize_eager_ptq.py": {
        "test_conv_1d": LAYER,
        "test_conv_2d": LAYER,
        "test_conv_3d": LAYER,
        "test_linear": LAYER,
        "test_leaky_relu": LAYER,
        "test_relu": LAYER,
        "test_functional_module": "tests/torch/nn/quantized/test_functional_modules.py::test_methods",
        "test_single_layer": "tests/torch/workflow/test_convert.py::test_scales_are_those_that_were_observed",
        "test_two_layers": NESTED,
        "test_nested1": NESTED,
        "test_nested2": NESTED,
        "test_nested3": NESTED,
        "test_skip_quant": NESTED,
        "test_manual": "tests/torch/workflow/test_models.py::test_default_eval_fn_calibrates",
        "test_resnet_base": "tests/torch/workflow/test_models.py::test_calibrated_models_predict_as_floats_do",
        "test_normalization": LAYER,
        "test_save_load_state_dict": LOADS,
        "test_activations": LAYER,
        "test_forward_hooks_preserved": OBSERVED,
        "test_dequant_stub": f"{AS_TORCH}::test_a_stub_without_settings_stays",
        "test_custom_module_class": "tests/torch/workflow/test_convert.py::test_custom_classes",
        "test_quantwrapper_attaches_qconfig_to_dequant": (
            f"{AS_TORCH}::test_a_wrapper_takes_the_settings_of_what_it_wraps"
        ),
        "test_activations_in_non_leaf_module_list": (
            "tests/torch/workflow/test_prepare.py::test_lists_say_what_is_observed"
        ),
        "test_mha_batch_first_attr_is_copied_in_prepare": (
            "tests/torch/workflow/test_traps.py::test_attention_stays_in_floats_and_works"
        ),
        "Dynamic.test_single_layer": f"{AS_TORCH}::test_dynamic_quantization_in_two_steps",
        "Dynamic.test_two_layers": ENTRIES,
        "Dynamic.test_nested1": ENTRIES,
        "Dynamic.test_nested2": ENTRIES,
        "Dynamic.test_nested3": ENTRIES,
        "Dynamic.test_type_match_rule": ENTRIES,
        "Dynamic.test_per_channel_linear_quantize": DYNAMIC,
        "Dynamic.test_linear_relu_fusion": f"{AS_TORCH}::test_fused_linear_layers_are_dynamic",
        "Dynamic.test_quantized_rnn": f"{AS_TORCH}::test_sequences_of_several_lengths",
        "Dynamic.test_quantized_rnn_cell": DYNAMIC,
        "Dynamic.test_forward_hooks_preserved": HOOKS,
        "Dynamic.test_embedding_op_dynamic": (
            "tests/torch/workflow/test_dynamic.py::test_embeddings_are_quantized_where_they_are_named"
        ),
    },
    "test_quantize_eager_qat.py": {
        "test_manual": "tests/torch/workflow/test_models.py::test_quantize_qat_trains_and_converts",
        "test_dropout": f"{AS_TORCH}::test_dropout_is_nothing_in_integers",
        "test_eval_only_fake_quant": f"{STEPS}::test_evaluation_before_any_training_calibrates",
        "test_conv_linear": "tests/torch/workflow/test_qat.py::test_prepare_qat_swaps_and_observes",
        "test_train_save_load_eval": TRAINED,
        "test_forward_hooks_preserved": f"{AS_TORCH}::test_hooks_go_through_training",
        "test_add_scalar_uses_input_qparams": f"{STEPS}::test_functionals_of_scalars_need_no_range",
        "test_mul_scalar_uses_input_qparams": f"{STEPS}::test_functionals_of_scalars_need_no_range",
        "test_fixed_qparam_ops": f"{AS_TORCH}::test_activations_after_training",
        "Numerics.test_leaky_relu": f"{AS_TORCH}::test_activations_after_training",
        "Numerics.test_relu": f"{AS_TORCH}::test_activations_after_training",
        "test_conv_bn_relu": f"{AS_TORCH}::test_conv_bn_without_rounding_is_both_layers",
        "test_conv_bn_folded_vs_unfolded": (
            "tests/torch/workflow/test_qat.py::test_conv_bn_trains_with_the_bits_of_torchs_stable_form"
        ),
    },
    "test_fuse_eager.py": {
        "test_fuse_module_train": SEVERAL,
        "test_fuse_module_eval": SEVERAL,
        "test_fusion_sequential_model_train": ROWS,
        "test_fusion_sequential_model_eval": ROWS,
        "test_fusion_conv_with_bias": f"{AS_TORCH}::test_fusing_in_training_without_observers_changes_nothing",
        "test_fusion_linear_bn_eval": "tests/torch/workflow/test_fuse.py::test_a_linear_layer_takes_its_batch_norm",
        "test_forward_hooks_preserved": ENDS,
    },
    "test_model_numerics.py": {
        "test_float_quant_compare_per_tensor": f"{AS_TORCH}::test_noise_of_models",
        "test_float_quant_compare_per_channel": f"{AS_TORCH}::test_noise_of_models",
        "test_fake_quant_true_quant_compare": (
            "tests/torch/workflow/test_models.py::test_trained_models_compute_what_they_were_trained_for"
        ),
        "test_weight_only_activation_only_fakequant": f"{AS_TORCH}::test_noise_of_models",
    },
    "test_quantized_module.py": {
        "test_relu": f"{FORMS}::test_functional",
        "test_linear_api": f"{AS_TORCH}::test_parameters_of_a_layer_are_set_and_go_through_files",
        "test_quant_dequant_api": "tests/torch/nn/quantized/test_functional_modules.py::test_stubs",
        "test_conv1d_api": "tests/torch/nn/quantized/test_conv.py::test_bits",
        "test_conv2d_api": "tests/torch/nn/quantized/test_conv.py::test_bits",
        "test_conv3d_api": "tests/torch/nn/quantized/test_conv.py::test_bits",
        "test_pool_api": LAYER,
        "test_dropout": LAYER,
        "test_dropout_serialization": LOADS,
        "test_batch_norm2d": f"{FORMS}::test_near_the_layer_of_floats",
        "test_batch_norm3d": f"{FORMS}::test_near_the_layer_of_floats",
        "test_batch_norm2d_serialization": f"{FORMS}::test_state_dicts",
        "test_batch_norm3d_serialization": f"{FORMS}::test_state_dicts",
        "test_layer_norm": f"{FORMS}::test_near_the_layer_of_floats",
        "test_group_norm": f"{FORMS}::test_near_the_layer_of_floats",
        "test_instance_norm": f"{FORMS}::test_near_the_layer_of_floats",
        "test_elu": f"{FORMS}::test_near_the_layer_of_floats",
        "test_leaky_relu": f"{FORMS}::test_near_the_layer_of_floats",
        "test_sigmoid": f"{FORMS}::test_near_the_layer_of_floats",
        "test_embedding_api": f"{FORMS}::test_embedding",
        **dict.fromkeys(("test_conv_transpose_1d", "test_conv_transpose_2d", "test_conv_transpose_3d"), TRANSPOSED),
        "test_convtranspose_per_channel_fails_early": TRANSPOSED,  # here they do not fail
        "test_convtranspose_per_channel_qconfig_none": TRANSPOSED,
        "test_fusion_convtranspose_bn_eval": TRANSPOSED.replace("converted", "fused_with_its_batch_norm"),
        "Dynamic.test_linear_api": DYNAMIC,
        "Dynamic.test_lstm_api": DYNAMIC,
        "Dynamic.test_gru_api": DYNAMIC,
        "Dynamic.test_cell_api": DYNAMIC,
    },
}

# What the first library, whose names these are, did not have.
LATER = {
    "transposed convolutions of dynamic inputs": (
        "test_dynamic_convtranspose1d test_dynamic_convtranspose2d test_dynamic_convtranspose3d"
    ).split(),
    "modules that imitate quantized ones in floats": (
        "test_int16_reference_module TestReferenceQuantizedModule.test_rnn_cell "
        "TestReferenceQuantizedModule.test_rnn TestReferenceQuantizedModule.test_sparse"
    ).split(),
    "bags of embeddings, and embeddings before convert or in training": (
        "test_quantized_embedding test_quantized_embedding_bag test_embedding_bag_dynamic "
        "test_defused_embedding_bag_linear test_embedding_bag_linear test_qat_embedding_bag_errors "
        "test_embedding_qat_qconfig_equal test_embedding_bag_api"
    ).split(),
    "convolutions with dynamic inputs, and training for dynamic layers": (
        "test_dynamic_conv1d test_dynamic_conv2d test_dynamic_conv3d test_dynamic_qat_linear"
    ).split(),
    "batch norms after linear layers in training": ("test_linear_bn_numerics", "test_linear_bn_workflow"),
    "other layers": ("test_prelu", "test_channel_shuffle", "test_linear_leaky_relu", "test_linear_tanh"),
    "tools that compare models: here `report`, `qtorch.insight`": (
        "TestBiasCorrectionEager TestNumericSuiteEager TestEqualizeEager"
    ).split(),
}


@pytest.mark.parametrize("module", COVERED)
def test_each_has_its_test(module):
    for name, place in COVERED[module].items():
        path, test = place.split("::")
        assert re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), (name, place)


def test_none_is_listed_twice():
    later = [name for names in LATER.values() for name in names]
    assert len(later) == len(set(later))
    assert not set(later) & {name for names in COVERED.values() for name in names}
