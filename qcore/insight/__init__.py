"""What rounding does to a model: statistics, records, and formats by site."""

from qcore.insight.choosing import Choice, Point, Sensitivity, choose_formats, sensitivity

__all__ = ["Choice", "Point", "Sensitivity", "choose_formats", "sensitivity"]
