"""The kernels that an ordinary test run compiles, each in seconds: every layout, carrier and kind, and some modes.

In the place of others the law runs operation by operation, as where there is no compiler. `pytest -m ""` has all.
"""

QUICK = {
    # every layout and some modes
    "grid-nearest-float32-numbers-flat",
    "grid-odd-float32-numbers-flat",
    "grid-stochastic-float32-numbers-flat",
    "grid-stochastic-float32-numbers-keyed",
    "grid-stochastic-float32-numbers-channels",
    "overflowing-stochastic-float32-float8-channels",
    "block-nearest-float32-numbers-whole",
    "block-nearest-float32-numbers-rows",
    "block-nearest-float32-numbers-columns",
    "block-nearest-float32-numbers-middle",
    "block-stochastic-float32-numbers-rows",
    "scaled-nearest-float32-numbers-rows",
    "scaled-nearest-float32-numbers-bands",
    "scaled-nearest-float32-numbers-squares",
    # every carrier
    "grid-nearest-float16-numbers-pairs",
    "grid-stochastic-bfloat16-numbers-pairs",
    "grid-nearest-float64-numbers-flat",
    # every other kind
    "overflowing-nearest-float32-numbers-flat",
    "general-nearest-float32-numbers-flat",
    "wide-nearest-float32-numbers-flat",
    "wrap-nearest-float32-numbers-flat",
    "posit-nearest-float32-numbers-flat",
    "wide_posit-nearest-float32-numbers-flat",
    "nvfp4-nearest-float32-numbers-rows",
    # codes
    "overflowing-nearest-float32-float8-flat",
    "overflowing-nearest-float32-float16-pairs",
    "overflowing-nearest-float16-float8-pairs",
    "grid-nearest-float32-small8-flat",
    "wide-nearest-float32-power8-flat",
    "scaled-nearest-float32-float8grid-rows",
    "scaled-nearest-float32-float8grid-whole",
    # affine integers
    "affine-forward-flat-float32",
    "affine-forward-rows-float32",
    "affine-backward-float32",
    "affine-extremes",
    # optimizers
    "comparison",
}
