"""What runs in a child. start.py comes first and says what `kernel` and its like are here."""
