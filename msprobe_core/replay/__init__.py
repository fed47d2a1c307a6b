"""Replay recorded calls in float64, and judge their recorded results against the replays."""
