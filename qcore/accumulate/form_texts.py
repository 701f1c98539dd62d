"""Forms by their texts, which operators of compiled programs hold."""

from __future__ import annotations

from functools import lru_cache

from qcore.accumulate.convolution import ConvolutionForm
from qcore.accumulate.forms import MatrixForm

Form = MatrixForm | ConvolutionForm
_FORMS = {form.text: form for form in (MatrixForm(), MatrixForm(transposed=True))}


@lru_cache(maxsize=1024)
def form_of(text: str) -> Form:
    """The inverse of a form's `text`."""
    if text in _FORMS:
        return _FORMS[text]
    stride, padding, dilation, groups = (tuple(map(int, field.split(","))) for field in text.split(" ")[1:])
    return ConvolutionForm(stride, padding, dilation, groups[0])
