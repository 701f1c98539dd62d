"""When sums need no float64, or no order; and sequential sums in float32."""
