"""The commands of `python -m qcore`: tables, drawings and checks. No other module of the library imports them."""
