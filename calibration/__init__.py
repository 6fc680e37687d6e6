"""Data to ranges: samples, readers, statistics and threshold methods."""
