"""Samples for shards."""


def samples():
    return ({"__key__": f"{n:03d}", "txt": str(n), "cls": n % 2} for n in range(10))
