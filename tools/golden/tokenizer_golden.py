"""Nothing yet."""
def make(root): pass
