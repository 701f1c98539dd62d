"""The law that every package runs on arrays of integers; it has programs and constants, no formats."""
