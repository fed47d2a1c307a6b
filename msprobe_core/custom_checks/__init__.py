"""Checks that plugins offer, and what they find."""
