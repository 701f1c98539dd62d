"""A chip designer's first day: a dot-product unit, and ten wrong ones, whose faults `qbits check` names.

The unit shares no code with the library. It adds four products of e4m3fn and the accumulator in float64, and rounds the
sum to bfloat16 with exact fractions.
"""

import json
import math
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

TERMS, CHUNK = 16, 4
UNIT = f"accumulator(bfloat16,chunk={CHUNK})"
# The faults, each a change of one line of the unit, and what `check` says of the unit.
FAULTS = {
    "ties away": "rounds sums nearest_away",
    "no rounding": "rounds sums toward_zero",
    "a bit less": "has 6 bits of mantissa",
    "two at once": "adds 2 terms at once",
    "no subnormal sums": "counts subnormal sums as zeros",
    "no subnormal a": "counts subnormal numbers of a as zeros",
    "a bit less of b": "cuts the last bit of b",
    "a term less": "drops the last term",
    "addend without sign": "does not see the sign of the addend",
    "no NaN": "takes NaN for zero",
}


def factor(code: int, fault: str) -> float:
    """The number of a code of e4m3fn."""
    sign, exponent, mantissa = -1.0 if code >> 7 else 1.0, code >> 3 & 15, code & 7
    if code & 127 == 127:
        return 0.0 if fault == "no NaN" else math.nan
    if not exponent:
        return 0.0 if fault == "no subnormal a" else sign * math.ldexp(mantissa, -9)
    return sign * math.ldexp(8 + (mantissa & 6 if fault == "a bit less of b" else mantissa), exponent - 10)


def addend(code: int, fault: str) -> float:
    """The float32 number of a code."""
    x = struct.unpack(">f", code.to_bytes(4, "big"))[0]
    if fault == "no NaN" and math.isnan(x):
        return 0.0
    return abs(x) if fault == "addend without sign" else x


def rounded(x: float, fault: str) -> float:
    """The bfloat16 number nearest to a sum, of two the even one."""
    if not math.isfinite(x):
        return x
    bits = 6 if fault == "a bit less" else 7
    quantum = Fraction(2) ** (max(math.frexp(x)[1] - 1, -126) - bits)
    steps = abs(Fraction(x)) / quantum
    if fault == "ties away":
        steps = math.floor(steps + Fraction(1, 2))
    else:
        steps = math.floor(steps) if fault == "no rounding" else round(steps)
    found = float(steps * quantum)
    if fault == "no subnormal sums" and found < 2.0**-126:
        found = 0.0
    return math.copysign(found if found < 2.0**128 else math.inf, x)


def unit(row: dict[str, str], fault: str = "") -> float:
    """The sum of a row's products, added to its addend."""
    a = [factor(int(row[f"a{i}"], 16), "" if fault == "a bit less of b" else fault) for i in range(TERMS)]
    b = [factor(int(row[f"b{i}"], 16), "" if fault == "no subnormal a" else fault) for i in range(TERMS)]
    products = [x * y for x, y in zip(a, b, strict=True)]
    if fault == "a term less":
        products[-1] = 0.0
    found = addend(int(row["c"], 16), fault)
    step = 2 if fault == "two at once" else CHUNK
    for start in range(0, TERMS, step):
        found = rounded(found + sum(products[start : start + step], 0.0), fault)
    return found


def judged(rows: list[str], fault: str = "") -> str:
    """What `qbits check` says of a unit's results; fields of the steps are empty, and are not compared."""
    names, lines = json.loads(rows[0])["columns"], rows[:1]
    for row in rows[1:]:
        fields = dict(zip(names, row.split(","), strict=True))
        found = unit(fields, fault)
        result = "7fc00000" if math.isnan(found) else struct.pack(">f", found).hex()
        kept = {name: text if name == "kind" or name[0] in "abc" else "" for name, text in fields.items()}
        lines.append(",".join((kept | {"result": result}).values()))
    Path("answers.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = subprocess.run(["qbits", "check", "answers.csv"], capture_output=True, text=True).stdout
    return " ".join(said.split())


def main() -> None:
    command = ["qbits", "vectors", UNIT, "--operands", "e4m3fn", "e4m3fn", "--terms", str(TERMS), "--count", "200"]
    subprocess.run([*command, "-o", "unit.csv"], check=True)
    rows = Path("unit.csv").read_text(encoding="utf-8").splitlines()
    right = judged(rows)
    assert "0 of 200 rows differ" in right, right
    for fault, words in FAULTS.items():
        found = judged(rows, fault)
        assert f"the results are those of a unit that {words}" in found, (fault, found)
        print(f"{fault}: it {words}")


if __name__ == "__main__":
    main()
