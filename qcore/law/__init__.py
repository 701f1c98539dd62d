"""The law that every package runs on arrays of integers; it knows programs and constants, no formats."""
