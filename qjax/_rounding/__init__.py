"""What happens to an array that is rounded."""
