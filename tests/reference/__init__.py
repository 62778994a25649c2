"""The equations once more in NumPy, one client after the other. Nothing here imports the package."""
