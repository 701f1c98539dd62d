"""QPyTorch's name for `lower` and `sequential_lower`, which `qtorch.recipes` holds."""

from qtorch.recipes import lower as lower
from qtorch.recipes import sequential_lower as sequential_lower
