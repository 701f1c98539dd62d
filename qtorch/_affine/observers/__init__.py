"""What chooses parameters from the tensors that it sees."""
