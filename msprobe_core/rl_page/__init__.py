"""A whole run of an RL trainer as a page: stages over steps, curves of the mismatch, the worst tokens in their text."""
