"""Attacks on a running server: each must leave it answering right.

Knows the server's binary and its HTTP port, none of its code.
"""
