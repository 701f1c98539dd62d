"""Scales that the elements of a block share."""
