"""The fault matrix: what is wrong with an input, and what the toolkit must answer. One table for tests and docs."""
