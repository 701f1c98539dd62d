"""What happens to a tensor that is rounded."""
