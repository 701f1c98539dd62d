"""A record as a table with advice, as a page of pictures, and for other programs."""
