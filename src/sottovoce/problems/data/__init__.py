"""Data sets, how they are divided over agents, and the models trained on them."""
