"""The number formats; each reduces itself to a few integers for the law."""
