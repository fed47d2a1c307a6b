"""Files for other viewers, of the same data that the page shows."""
