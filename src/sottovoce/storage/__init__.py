"""Files that are never half written, one store of finished work, and progress on long work."""
