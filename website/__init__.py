"""How docs/ becomes a site: `mkdocs build --strict`; and what in it is generated: `python -m website`."""
