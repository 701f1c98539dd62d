"""What every backend traces: integers only."""
