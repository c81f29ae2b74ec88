"""Parts that the examples share; each script puts the folder above on its path, and its workers get that path."""
