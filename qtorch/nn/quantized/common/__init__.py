"""What layers in integers have in common."""
