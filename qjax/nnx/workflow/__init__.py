"""Models prepared, calibrated, fused, trained and converted."""
