"""Checks of what readers see: the built book in a browser, and a notebook in Jupyter Lab."""
