"""Files for other viewers, with the same data as the HTML page."""
