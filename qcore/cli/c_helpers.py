"""Small functions of C that files of ours call: those that no operator of C is for in all cases."""

from __future__ import annotations

import re

# Functions that a text does not call are left out: compilers warn of them.
HELPERS = {
    "bits_of": """
/* The bits of a number. */
static int32_t bits_of(float number)
{
    int32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}""",
    "number_of": """
/* The number that has these bits. */
static float number_of(int32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}""",
    "lane": """
/* The same 32 bits as an integer with a sign. */
static int32_t lane(uint32_t word)
{
    int32_t bits;
    memcpy(&bits, &word, sizeof bits);
    return bits;
}""",
    "left": """
/* A shift to the left, by 0 to 31; bits beyond the highest are lost. */
static int32_t left(int32_t value, int32_t count)
{
    return lane((uint32_t)value << count);
}""",
    "right": """
/* A shift to the right, by 0 to 31, that repeats the sign. */
static int32_t right(int32_t value, int32_t count)
{
    return value < 0 ? ~(~value >> count) : value >> count;
}""",
    "add": """
/* A sum that wraps around. */
static int32_t add(int32_t a, int32_t b)
{
    return lane((uint32_t)a + (uint32_t)b);
}""",
    "subtract": """
/* A difference that wraps around. */
static int32_t subtract(int32_t a, int32_t b)
{
    return lane((uint32_t)a - (uint32_t)b);
}""",
    "multiply": """
/* A product that wraps around. */
static int32_t multiply(int32_t a, int32_t b)
{
    return lane((uint32_t)a * (uint32_t)b);
}""",
    "rotate": """
/* A rotation to the left, by 1 to 31. */
static int32_t rotate(int32_t value, int32_t count)
{
    return lane((uint32_t)value << count | (uint32_t)value >> (32 - count));
}""",
    "at_least": """
/* The larger of a value and its lower bound. */
static int32_t at_least(int32_t value, int32_t low)
{
    return value < low ? low : value;
}""",
    "at_most": """
/* The smaller of a value and its upper bound. */
static int32_t at_most(int32_t value, int32_t high)
{
    return value > high ? high : value;
}""",
    "float_bits": """
/* The bits of an integer as a float; the conversion is to nearest, ties to even. */
static int32_t float_bits(int32_t value)
{
    return bits_of((float)value);
}""",
    "integer": """
/* The integer that the float with these bits is, toward zero. */
static int32_t integer(int32_t bits)
{
    return (int32_t)number_of(bits);
}""",
    "product_bits": """
/* The bits of the product of two integers as floats; the multiplication is that of IEEE 754. */
static int32_t product_bits(int32_t a, int32_t b)
{
    return bits_of((float)a * (float)b);
}""",
    "quotient_bits": """
/* The bits of the quotient of two integers as floats; division is that of IEEE 754. */
static int32_t quotient_bits(int32_t a, int32_t b)
{
    return bits_of((float)a / (float)b);
}""",
}


def _of_64_bits(text: str) -> str:
    """A function for lanes of 64 bits."""
    text = re.sub(rf"\b({'|'.join(_OF_LANES)})\(", r"\g<1>64(", text)
    for old, new in (("int32_t", "int64_t"), ("31", "63"), ("32", "64")):
        text = text.replace(old, new)
    return re.sub(r"\bfloat\b", "double", text)


_OF_LANES = tuple(HELPERS)
HELPERS |= {f"{name}64": _of_64_bits(text) for name, text in HELPERS.items()}
HELPERS |= {
    "truncated": """
/* The integer next to a number, toward zero. */
static double truncated(double x)
{
    if (!(x > -0x1p52 && x < 0x1p52))
        return x; /* it is one, or infinite, or NaN */
    return x < 0 ? -(double)(int64_t)-x : (double)(int64_t)x;
}""",
    "floored": """
/* The integer next to a number, downward. */
static double floored(double x)
{
    const double near = truncated(x);
    return near > x ? near - 1 : near;
}""",
}


def called_in(text: str) -> list[str]:
    """The helpers that a text calls, and those that they call."""
    found: list[str] = []
    for name in reversed(HELPERS):  # each calls those above it
        if re.search(rf"\b{name}\(", "\n".join([text, *found])):
            found.insert(0, HELPERS[name])
    return found
