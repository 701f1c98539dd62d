"""Formats by site: how a search is done and what it takes."""
