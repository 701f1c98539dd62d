"""APyTypes' roundings that have a name here."""

from apytypes import QuantizationMode

MODES = {
    "nearest": QuantizationMode.TIES_EVEN,
    "nearest_away": QuantizationMode.TIES_AWAY,
    "nearest_zero": QuantizationMode.TIES_ZERO,
    "nearest_up": QuantizationMode.TIES_POS,
    "nearest_down": QuantizationMode.TIES_NEG,
    "toward_zero": QuantizationMode.TO_ZERO,
    "away": QuantizationMode.TO_AWAY,
    "up": QuantizationMode.TO_POS,
    "down": QuantizationMode.TO_NEG,
    "odd": QuantizationMode.JAM_UNBIASED,
}
