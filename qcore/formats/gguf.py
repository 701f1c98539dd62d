"""Where pickles of earlier commits look for `GGUF`."""

from qcore.exchange.formats.gguf import GGUF as GGUF
