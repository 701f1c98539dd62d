"""Where pickles of earlier commits look for `AffineInteger`."""

from qcore.affine.integers import AffineInteger as AffineInteger
