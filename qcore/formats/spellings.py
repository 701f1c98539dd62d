"""A table of the names of formats in other libraries, for `parse`, its errors and the page of named formats."""

from __future__ import annotations

from difflib import get_close_matches

from qcore.formats.names import NAMED

GGUF_TYPES = tuple(  # in small letters
    "q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs tq1_0 tq2_0 mxfp4 nvfp4 q1_0 q2_0".split()
)
OTHERS = "others"  # the owner of spellings that several use

_FLOATS: dict[str, dict[str, str]] = {
    "float16": {
        "IEEE 754": "binary16",
        "NumPy": "float16 half f2",
        "torch": "float16 half",
        "ONNX": "FLOAT16",
        "safetensors": "F16",
        "GGUF": "F16",
        "MLIR": "f16",
        "CUDA": "CUDA_R_16F",
        OTHERS: "fp16",
    },
    "bfloat16": {
        "P3109": "BFloat16",
        "ml_dtypes": "bfloat16",
        "torch": "bfloat16",
        "ONNX": "BFLOAT16",
        "safetensors": "BF16",
        "GGUF": "BF16",
        "MLIR": "bf16",
        "CUDA": "CUDA_R_16BF",
    },
    "binary(8,23)": {
        "IEEE 754": "binary32",
        "NumPy": "float32 single f4",
        "torch": "float32 float",
        "ONNX": "FLOAT",
        "safetensors": "F32",
        "GGUF": "F32",
        "MLIR": "f32",
        "CUDA": "CUDA_R_32F",
        OTHERS: "fp32",
    },
    "binary(11,52)": {
        "IEEE 754": "binary64",
        "NumPy": "float64 double float f8",
        "torch": "float64 double",
        "ONNX": "DOUBLE",
        "safetensors": "F64",
        "GGUF": "F64",
        "MLIR": "f64",
        "CUDA": "CUDA_R_64F",
        OTHERS: "fp64",
    },
    "tf32": {"NVIDIA": "TF32 TensorFloat32", "MLIR": "tf32", "PTX": "tf32"},
    "dlfloat16": {"IBM": "DLFloat16 DLFloat"},
    "hif8": {"Huawei": "HiF8 HiFloat8", "en-dtypes": "hifloat8"},
    "e4m3": {"ml_dtypes": "float8_e4m3", "MLIR": "f8E4M3", OTHERS: "fp8_e4m3"},
    "e4m3fn": {
        "ml_dtypes": "float8_e4m3fn",
        "torch": "float8_e4m3fn",
        "ONNX": "FLOAT8E4M3FN",
        "safetensors": "F8_E4M3",
        "MLIR": "f8E4M3FN",
        "CUDA": "CUDA_R_8F_E4M3 __nv_fp8_e4m3",
        "HIP": "__hip_fp8_e4m3",
        "Triton": "fp8e4nv float8e4nv",
        "vLLM": "fp8_e4m3",
        "AVX10.2": "HF8",
        OTHERS: "fp8 float8 fp8_e4m3fn",
    },
    "e4m3fnuz": {
        "ml_dtypes": "float8_e4m3fnuz",
        "torch": "float8_e4m3fnuz",
        "ONNX": "FLOAT8E4M3FNUZ",
        "safetensors": "F8_E4M3FNUZ",
        "MLIR": "f8E4M3FNUZ",
        "HIP": "__hip_fp8_e4m3_fnuz",
        "Triton": "fp8e4b8 float8e4b8",
        "AMD CDNA 3": "FP8",
        OTHERS: "fp8_e4m3fnuz",
    },
    "e4m3b11fnuz": {
        "ml_dtypes": "float8_e4m3b11fnuz float8_e4m3b11",
        "MLIR": "f8E4M3B11FNUZ",
        OTHERS: "fp8_e4m3b11fnuz",
    },
    "e5m2": {
        "ml_dtypes": "float8_e5m2",
        "torch": "float8_e5m2",
        "ONNX": "FLOAT8E5M2",
        "safetensors": "F8_E5M2",
        "MLIR": "f8E5M2",
        "CUDA": "CUDA_R_8F_E5M2 __nv_fp8_e5m2",
        "HIP": "__hip_fp8_e5m2",
        "Triton": "fp8e5 float8e5",
        "AVX10.2": "BF8",
        OTHERS: "fp8 float8 fp8_e5m2",
    },
    "e5m2fnuz": {
        "ml_dtypes": "float8_e5m2fnuz",
        "torch": "float8_e5m2fnuz",
        "ONNX": "FLOAT8E5M2FNUZ",
        "safetensors": "F8_E5M2FNUZ",
        "MLIR": "f8E5M2FNUZ",
        "HIP": "__hip_fp8_e5m2_fnuz",
        "Triton": "fp8e5b16 float8e5b16",
        "AMD CDNA 3": "BF8",
        OTHERS: "fp8_e5m2fnuz",
    },
    "e3m4": {"ml_dtypes": "float8_e3m4", "MLIR": "f8E3M4", OTHERS: "fp8_e3m4"},
    "e8m0fnu": {
        "OCP": "E8M0",
        "ml_dtypes": "float8_e8m0fnu",
        "torch": "float8_e8m0fnu",
        "ONNX": "FLOAT8E8M0",
        "safetensors": "F8_E8M0",
        "MLIR": "f8E8M0FNU",
        "CUDA": "CUDA_R_8F_UE8M0",
        "PTX": "ue8m0",
        OTHERS: "fp8_e8m0fnu",
    },
    "binary(4,3,specials=fn,signed=False)": {"CUDA": "CUDA_R_8F_UE4M3", "PTX": "ue4m3"},
    "binary(5,3,specials=fn,signed=False)": {"PTX": "ue5m3"},
    "e2m3fn": {
        "OCP": "E2M3",
        "ml_dtypes": "float6_e2m3fn",
        "safetensors": "F6_E2M3",
        "MLIR": "f6E2M3FN",
        "CUDA": "CUDA_R_6F_E2M3 __nv_fp6_e2m3",
        "HIP": "__hip_fp6_e2m3",
        OTHERS: "fp6 float6 fp6_e2m3fn",
    },
    "e3m2fn": {
        "OCP": "E3M2",
        "ml_dtypes": "float6_e3m2fn",
        "safetensors": "F6_E3M2",
        "MLIR": "f6E3M2FN",
        "CUDA": "CUDA_R_6F_E3M2 __nv_fp6_e3m2",
        "HIP": "__hip_fp6_e3m2",
        OTHERS: "fp6 float6 fp6_e3m2fn",
    },
    "e2m1fn": {
        "OCP": "E2M1",
        "ml_dtypes": "float4_e2m1fn",
        "torch": "float4_e2m1fn_x2",
        "ONNX": "FLOAT4E2M1",
        "safetensors": "F4",
        "MLIR": "f4E2M1FN",
        "CUDA": "CUDA_R_4F_E2M1 __nv_fp4_e2m1",
        "HIP": "__hip_fp4_e2m1",
        OTHERS: "fp4 float4 fp4_e2m1fn",
    },
    "mxfp8_e4m3": {"OCP": "MXFP8"},
    "mxfp8_e5m2": {"OCP": "MXFP8"},
    "mxfp6_e2m3": {"OCP": "MXFP6"},
    "mxfp6_e3m2": {"OCP": "MXFP6"},
    "mxfp4": {OTHERS: "mxfp4_e2m1"},
}


def _integers(bits: int, signed: bool) -> tuple[str, dict[str, str]]:
    """The row of the integers of a width, by the rows' rules."""
    name, letter = (f"int{bits}", "i") if signed else (f"uint{bits}", "u")
    row = {"NumPy": f"{name} {letter}{bits // 8}"} if bits in (8, 16, 32, 64) else {}
    if bits in (1, 2, 4):
        row["ml_dtypes"] = name
    if bits <= 8 or bits in (16, 32, 64):
        row["torch"] = name
    else:
        row[OTHERS] = name
    if bits in (2, 4, 8, 16, 32, 64):
        row["ONNX"] = name.upper()
    if bits in (8, 16, 32, 64):
        row["safetensors"] = f"{letter}{bits}".upper()
    if bits in (8, 16, 32, 64) and signed:
        row["GGUF"] = f"I{bits}"
    row |= {"MLIR": f"i{bits} si{bits}", "XLA": f"s{bits}"} if signed else {"MLIR": f"ui{bits}", "XLA": f"u{bits}"}
    return name if name in NAMED else f"fixed({bits},0{'' if signed else ',signed=False'})", row


SPELLINGS: dict[str, dict[str, str]] = {  # format: {owner: spellings with spaces between them}
    **_FLOATS,
    **{f"gguf({kind})": {"GGUF": kind.upper()} for kind in GGUF_TYPES if kind not in NAMED},
    **dict(_integers(bits, True) for bits in range(1, 65)),
    **dict(_integers(bits, False) for bits in range(1, 65)),
}


def _meanings() -> dict[str, str]:
    """The table by spelling, in small letters: {spelling: formats with spaces between them}."""
    found: dict[str, str] = {}
    for text, owners in SPELLINGS.items():
        for spelling in {one: None for spellings in owners.values() for one in spellings.lower().split()}:
            found[spelling] = f"{found[spelling]} {text}" if spelling in found else text
    return found


MEANINGS = _meanings()


def likely_meanings(name: str) -> list[str]:
    """For messages: what an ambiguous spelling means to its owners, or the formats with the most similar names."""
    name = name.lower()
    if name in MEANINGS:
        return [text + _by(owners_of(name, text)) for text in MEANINGS[name].split()]
    near = get_close_matches(name, [*NAMED, *MEANINGS], 8, 0.6)
    return list(dict.fromkeys(text for one in near for text in ([one] if one in NAMED else MEANINGS[one].split())))[:4]


def owners_of(spelling: str, text: str) -> list[str]:
    """The owners that spell a format so, in small letters."""
    return [owner for owner, spellings in SPELLINGS[text].items() if spelling in spellings.lower().split()]


def _by(owners: list[str]) -> str:
    known = [owner for owner in owners if owner != OTHERS]
    return f" ({', '.join(known)})" if known else ""
