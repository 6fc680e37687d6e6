"""What each step does: plain typed functions, values in, values out."""
