"""Decode engine driven through the CUDA driver API."""
