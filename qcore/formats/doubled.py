"""Where pickles of earlier commits look for `Doubled`."""

from qcore.exchange.formats.doubled import Doubled as Doubled
