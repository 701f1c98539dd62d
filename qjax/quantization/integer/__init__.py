"""Exact sums of products of integers."""
