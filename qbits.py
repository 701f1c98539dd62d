"""What is installed as qbits: import `qcore` (formats, rounding), `qtorch` (PyTorch) or `qjax` (JAX).

>>> import qcore, qbits
>>> qbits.__version__ == qcore.__version__
True
"""

from qcore.version import __version__

__all__ = ["__version__"]
