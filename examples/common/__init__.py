"""Modules shared by the examples; each script adds this folder's parent to its path, which its workers inherit."""
