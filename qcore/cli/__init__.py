"""The commands of `qbits`: tables, drawings and checks. No other module of the library imports them."""
