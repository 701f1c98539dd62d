"""What `python -m qcore` shows, draws and checks; nothing else in the library imports this."""
