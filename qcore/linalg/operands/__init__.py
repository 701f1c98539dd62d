"""What happens to an operand before it is multiplied: transforms, scales, and its rounding."""
