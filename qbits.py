"""The distribution of three packages that give the same bits. Import the package of your arrays.

- `import qtorch`: tensors of PyTorch. QPyTorch's and torch.quantization's names work on them.
- `import qjax`: arrays of JAX, and modules of flax.
- `import qcore`: arrays of NumPy; formats, accumulators and recipes, which all three share.

`help(qtorch)` lists what a package has; each public name has an example in its help. The command `qbits` prints
formats, and `qbits --help` lists its commands.

>>> import numpy as np
>>> import qcore
>>> qcore.quantize(np.float32([1.1, 2.6]), "e4m3fn")
array([1.125, 2.5  ], dtype=float32)
"""

from qcore.version import __version__

__all__ = ["__version__"]
