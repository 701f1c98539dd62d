"""What the functions of the workflow refuse, and in which words."""

import pytest
import torch
from torch import nn

from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.quantization import (
    QuantWrapper,
    add_observer_,
    convert,
    default_eval_fn,
    default_qat_qconfig,
    default_qconfig,
    from_torch_ao,
    fuse_known_modules,
    fuse_modules,
    fuse_modules_qat,
    get_observer_dict,
    load_converted,
    prepare,
    prepare_qat,
    propagate_qconfig_,
    quantize,
    quantize_dynamic,
    quantize_qat,
    swap_module,
    to_torch_ao,
)

PAIR = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
WRAPPED = QuantWrapper(nn.Linear(1, 1))
WRAPPED.qconfig = default_qconfig
LAYER = nn.Linear(1, 1)
LAYER.qconfig = default_qat_qconfig
WITHOUT_SCALE = {"fc.weight.int_repr": torch.zeros(1, 1, dtype=torch.int8)}


def prepared(**settings):
    return prepare(WRAPPED, **settings)


WRONG = [
    (lambda: get_observer_dict(3, {}), TypeError, "mod is a int; allowed is a torch.nn.Module"),
    (lambda: get_observer_dict(PAIR, 3), TypeError, "target_dict is a int; allowed is a dict"),
    (lambda: get_observer_dict(PAIR, {}, None), TypeError, "prefix is a NoneType; allowed is a str"),
    (lambda: propagate_qconfig_(PAIR, 3), TypeError, "qconfig_dict is a int; allowed is a dict"),
    (lambda: propagate_qconfig_(PAIR, {}, nn.Linear), TypeError, "white_list=<class .*Linear'>; allowed are None, and"),
    (lambda: propagate_qconfig_(PAIR, allow_list=["Linear"]), TypeError, r"allow_list=\['Linear'\]; allowed are None"),
    (lambda: prepared(allow_list=3), TypeError, "allow_list=3; allowed are None, and a list of types of modules"),
    (lambda: prepared(white_list=["Linear"]), TypeError, r"white_list=\['Linear'\]; allowed are None"),
    (lambda: prepared(observer_non_leaf_module_list=3), TypeError, "observer_non_leaf_module_list=3; allowed are None"),
    (lambda: prepared(prepare_custom_config_dict=3), TypeError, "prepare_custom_config_dict is a int; allowed is a"),
    (
        lambda: prepared(prepare_custom_config_dict={"float_to_observed_custom_module_class": {nn.Linear: nn.ReLU}}),
        TypeError,
        r"prepare_custom_config_dict has .*ReLU'> for Linear; allowed is a class with from_float\(module\)",
    ),
    (lambda: add_observer_(WRAPPED, 3), TypeError, "non_leaf_module_list=3; allowed are None"),
    (lambda: add_observer_(WRAPPED, allow_list="Linear"), TypeError, "allow_list='Linear'; allowed are None"),
    (lambda: prepare_qat(PAIR, 3), TypeError, "mapping is a int; allowed is a dict"),
    (lambda: convert(prepared(), True), TypeError, "mapping is a bool; allowed is a dict"),
    (lambda: convert(prepared(), convert_custom_config_dict=3), TypeError, "convert_custom_config_dict is a int"),
    (
        lambda: convert(prepared(), convert_custom_config_dict={"observed_to_quantized_custom_module_class": 3}),
        TypeError,
        r"convert_custom_config_dict\['observed_to_quantized_custom_module_class'\] is a int; allowed is a dict",
    ),
    (
        lambda: convert(prepared(), {nn.Linear: nn.ReLU}, allow_uncalibrated=True),
        TypeError,
        r"layer 'module': mapping has .*ReLU'> for Linear; allowed is a class with from_float\(module\)",
    ),
    (lambda: swap_module(LAYER, 3), TypeError, "mapping is a int; allowed is a dict"),
    (lambda: swap_module(LAYER, {}, 3), TypeError, "custom_module_class_mapping is a int; allowed is a dict"),
    (
        lambda: swap_module(LAYER, {nn.Linear: 3}),
        TypeError,
        r"mapping has 3 for Linear; allowed is a class with from_f",
    ),
    (
        lambda: swap_module(LAYER, {}, {nn.Linear: nn.ReLU}),
        TypeError,
        r"custom_module_class_mapping has .*ReLU'> for Linear; allowed is a class with from_observed\(module\)",
    ),
    (lambda: load_converted(PAIR, [1]), TypeError, "state_dict is a list; allowed is a dict"),
    (lambda: default_eval_fn(3, []), TypeError, "model is a int; allowed is a torch.nn.Module"),
    (lambda: default_eval_fn(PAIR, torch.ones(3, 2, 1)), TypeError, "calib_data has a Tensor; allowed are pairs of in"),
    (lambda: default_eval_fn(PAIR, [(1, 2, 3)]), TypeError, "calib_data has a tuple; allowed are pairs of inputs and"),
    (lambda: quantize_dynamic(PAIR, mapping=3), TypeError, "mapping is a int; allowed is a dict"),
    (lambda: quantize(WRAPPED, None, []), TypeError, "run_fn is a NoneType; allowed is a function of the model"),
    (lambda: quantize_qat(WRAPPED, 3, []), TypeError, "run_fn is a int; allowed is a function of the model"),
    (lambda: fuse_modules_qat(PAIR, None), TypeError, "modules_to_fuse has None; allowed are lists of names"),
    (lambda: fuse_modules(PAIR, ["0", "1"], fuser_func=3), TypeError, "fuser_func is a int; allowed is a function"),
    (lambda: fuse_modules(PAIR, [], fuse_custom_config_dict=3), TypeError, "fuse_custom_config_dict is a int"),
    (lambda: fuse_known_modules([]), ValueError, r"mod_list=\[\]; allowed are one or more modules"),
    (lambda: fuse_known_modules(LAYER), TypeError, "mod_list is a Linear; allowed is a list of modules"),
    (lambda: fuse_known_modules([LAYER, 3]), TypeError, r"mod_list\[1\] is a int; allowed is a torch.nn.Module"),
    (lambda: fuse_known_modules(list(PAIR), 3), TypeError, "additional_fuser_method_mapping is a int; allowed is a"),
    (lambda: to_torch_ao(3), TypeError, "state_dict is a int; allowed is a dict"),
    (lambda: to_torch_ao({3: torch.ones(1)}), TypeError, "the name 3 of state_dict is a int; allowed is a str"),
    (lambda: to_torch_ao(WITHOUT_SCALE), ValueError, r"has fc\.weight\.int_repr and no fc\.weight\.scale; allowed are"),
    (lambda: from_torch_ao([1]), TypeError, "state_dict is a list; allowed is a dict"),
    (lambda: from_torch_ao({3: torch.ones(1)}), TypeError, "the name 3 of state_dict is a int; allowed is a str"),
    (lambda: intrinsic_qat.freeze_bn_stats(None), TypeError, "mod is a NoneType; allowed is a torch.nn.Module"),
    (lambda: intrinsic_qat.update_bn_stats(2.5), TypeError, "mod is a float; allowed is a torch.nn.Module"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_is_no_list_but_has_modules_is_fused():
    assert type(fuse_known_modules(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))[0]).__name__ == "LinearReLU"
