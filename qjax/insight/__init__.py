"""What rounding does to a model."""

from qjax.insight.choosing import choose_formats, cross_entropy, sensitivity

__all__ = ["choose_formats", "cross_entropy", "sensitivity"]
