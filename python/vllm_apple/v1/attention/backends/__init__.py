"""Names and limits of attention; see apple.py."""
